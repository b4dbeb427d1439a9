r"""Every key that Penstock stores, with its type and what is in it.

One namespace is one hash tag, so one slot, and one script may touch all of it. The set is fixed: there is no key per
job, queue, lane or batch, so nothing leaks and everything can be looked through. In lexical sets every score is 0 and
each part of a member ends in \x1f.
"""

import re
from typing import Final

from penstock.errors import BadOption

KINDS: Final[dict[str, str]] = {
    # schema, seq, fence, seen (when a worker was last heard of), resumed (when the last silence ended), accepted,
    # forgotten, halted (names of paused tasks), asleep (1: a worker may be in idle), settings (1: something was set for
    # a queue once), sweep (how far the old statistics were looked through), needed_finished and
    # needed_dead (up to where prune found only members of unfinished batches, and when), stray (up to which worker reap
    # looked for unregistered holders of leases), headed (queue and priority of the last single job, while heads has
    # its place or one before it), named (cursor of prune in queues);
    # by lib/skills.lua: skills, worker → its set; lacks, set → queue, task, …; uneven (1: a set lacks something)
    "meta": "hash",
    "jobs": "hash",  # id → the record of the job (engine/record/): the truth from which everything else can be rebuilt
    "payloads": "hash",  # id → arguments that are too large for the record; removed when the job is done
    "results": "hash",  # id → opaque bytes
    "attempts": "hash",  # id → msgpack list of job.Attempt, the last ten
    "logs": "hash",  # id → msgpack: see log.lua; the last lines that its attempts wrote
    "ready": "zset",  # lexical: queue, priority and sequence, id
    "heads": "zset",  # place of the first ready job or an earlier one, see head(): queue that may be leased from
    "held": "zset",  # lexical: lane, queue, rank, id of a job that waits for this lane
    "holders": "zset",  # lexical: lane, id of a job that has a slot of it; not for locks with an owner: lib/locks.lua
    "lanes": "hash",  # lane in use → msgpack: see lib/lane_record.lua
    "limits": "hash",  # lane → msgpack [limit or -1, 1 if paused]: what was set by hand
    "openings": "zset",  # due ms: lane that waits for its rate
    "scheduled": "zset",  # due ms: id
    "leases": "zset",  # lexical: worker, call, id
    "cancels": "zset",  # lexical: worker, id of a running job that is to be cancelled
    "timers": "zset",  # due ms: what, id; `expire` for a waiting job that may expire
    "finished": "zset",  # until when the record is kept: id, done or cancelled
    "dead": "zset",  # when it died: id
    "deaths": "zset",  # lexical: fingerprint of the error, when it died, id of a dead job
    "tombs": "zset",  # when it finished: id whose header is compact
    "unique": "hash",  # unique key → id of its unfinished holder
    "waiting": "hash",  # id of an unfinished job, or {end} or {more} and the id of a batch → clients to notify, or *
    "queues": "hash",  # queue → [paused][ max=how many may wait.][ how many may run]
    "workers": "zset",  # alive until: worker
    "lives": "zset",  # length of its lease in ms: worker
    "nodes": "hash",  # worker → msgpack [information as JSON, queues, life, since]
    "calls": "hash",  # worker → the lease call up to which it has all answers, and the calls made after that
    "retired": "zset",  # since when: worker whose id is refused
    "idle": "zset",  # lexical: queue or *, worker that waits for work; !, worker that may be pushed a job
    "skills": "zset",  # lexical: set of skills (tasks and queues), live worker that has it: lib/skills.lua
    "crons": "hash",  # spec, schedule → msgpack of schedule.Spec; state, schedule → msgpack of schedule.Standing
    "ticks": "zset",  # when to look at it, ms: schedule that is active
    "keepers": "zset",  # lexical: schedule, worker whose code has it
    "batches": "hash",  # spec, batch → msgpack of batch_state.BatchSpec; state, batch → msgpack of BatchState
    "roster": "zset",  # lexical: batch, u, name of an unfinished member, or f, finish number, name: lib/batches.lua
    "chores": "zset",  # when to do it, ms: what, batch; abandon, forget, cancel or retry, the last two in pages
    "counts": "hash",  # queue, state → how many; not for ready jobs, which are counted in `ready`
    "stats": "hash",  # minute, queue, verb → how many; minute, queue, wait, run or lane → ms
    "events": "stream",  # an entry per script call: e → msgpack [now, [[verb, queue, task, attempt, note, ids], …]]
}

SEPARATOR: Final = "\x1f"
ALL_CLIENTS: Final = "*"  #: the channel that every waiting client subscribes to, beside its own
HEAD_STEP: Final = 1 << 46  #: between two priorities in the scores of `heads`
_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,100}\Z")


def rank(priority: int, number: int) -> str:
    """A place in a queue as text that sorts by it; the same as `rank` of lib/record.lua."""
    return f"{priority:02d}{number:012x}"


def head(priority: int, number: int) -> int:
    """The same place as a score of `heads`; a double holds it exactly."""
    return priority * HEAD_STEP + number


class Keys:
    """The names of one namespace's keys and channels."""

    def __init__(self, namespace: str) -> None:
        if not isinstance(namespace, str) or not _NAME.match(namespace):
            raise BadOption(f"namespace {str(namespace)[:60]!r}: use 1 to 100 letters, digits and . _ : / -")
        self.namespace = namespace
        self.prefix = f"penstock:{{{namespace}}}:"

    def __call__(self, name: str) -> bytes:
        return (self.prefix + name).encode()

    def channel(self, name: str) -> str:
        """The sharded channel of a worker or a waiting client."""
        return f"{self.prefix}to:{name}"

    @property
    def timer(self) -> str:
        """The sharded channel on which timers learn that something is due earlier than they know."""
        return f"{self.prefix}timer"
