"""The engine: one method per verb. Nothing else changes what is stored.

A method makes a `ScriptCall`, a value that can be awaited, run by blocking code or sent together with others. One verb
is one Lua file of the same name; its leading comment has the contract.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from penstock.engine import answers
from penstock.engine.answers import Chores, Due, DueCrons, EnqueueAnswer, Leased, Renewed, Watched, WatchedBatch
from penstock.engine.keys import KINDS, SEPARATOR, Keys
from penstock.engine.record.layout import LONGEST_CLAIM
from penstock.engine.record.record import is_plain, pack
from penstock.engine.transport.roundtrip import Argument
from penstock.engine.transport.script_client import ScriptCall, ScriptClient
from penstock.model.batch_state import BatchSpec
from penstock.model.batch_state import pack_spec as pack_batch
from penstock.model.error_fingerprint import error_fingerprint
from penstock.model.header import Header
from penstock.model.payload_codec import Codecs, PayloadCodec
from penstock.model.schedule import ScheduleSpec, Source, Ticks, job_of
from penstock.model.schedule import pack as pack_spec
from penstock.server.endpoint import Endpoint

MAX_WORKER_BYTES: Final = LONGEST_CLAIM - 17  #: bytes of a worker's name; a claim also has a call number
PAGE: Final = 100  #: jobs that one script call may touch, so that none takes longer than a few milliseconds
PLAIN_PAGE: Final = 250  #: the same for plain jobs with one label, which take no longer
MAX_ANSWER_BYTES: Final = 4 * 2**20  #: bytes of payload in one answer
MAX_BATCH_DEPTH: Final = 8  #: levels of batches inside batches
MIN_RENEWAL_TIMEOUT: Final = 0.3  #: seconds; the answer to a renewal gets a third of the lease, and at least this long
MAX_CRASHES: Final = 3  #: crashes that bury a job

_DAY: Final = 86_400_000
_pack = msgspec.msgpack.Encoder().encode


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to enqueue. Times in its header may be delays; its state is empty."""

    id: str
    header: Header
    payload: bytes


class NewBatch(NamedTuple):
    """A batch to open. A priority or limit of -1 means none."""

    id: str
    name: str = ""
    nonce: str = ""
    parent: str = ""
    priority: int = -1
    limit: int = -1
    abandon_after: int = _DAY
    keep: int = _DAY
    spec: BatchSpec = BatchSpec()


class Edit(NamedTuple):
    """Other arguments for a job that runs again, with the lanes and unique key that follow; None leaves these."""

    payload: bytes
    lanes: list[str] | None = None
    unique: str = ""
    task: str = ""


_NONE: Final[Mapping[str, Edit]] = {}


class Retention(NamedTuple):
    """How long, and how many, finished jobs are remembered. Results have their own `keep` in the header."""

    finished: int = 1_000_000
    tomb_life: int = _DAY
    tombs: int = 1_000_000
    dead_life: int = 90 * _DAY
    dead: int = 100_000


class Engine:
    """One namespace on one server."""

    def __init__(
        self,
        endpoint: Endpoint,
        namespace: str,
        *,
        deadline: float = 5.0,
        test_clock: Callable[[], int] | None = None,
        codecs: Sequence[PayloadCodec] = (),
    ) -> None:
        self.keys = Keys(namespace)
        self.codecs = Codecs(namespace, codecs)
        self._seals = self.codecs.has("arguments")
        self.script_client = ScriptClient(endpoint, self.keys, deadline=deadline, test_clock=test_clock)
        self._last_form: tuple[Header | None, bytes, bool] = None, b"", False

    def init(self) -> ScriptCall[str]:
        """Make the namespace. Only `reconcile` calls this: the first call of any other verb does it by itself."""
        return self.script_client.call("init", (), bytes.decode)

    # New jobs, and jobs that become ready

    def enqueue(self, jobs: Sequence[NewJob], behind: str = "") -> ScriptCall[list[EnqueueAnswer]]:
        """Store new jobs. `behind`: a job of the call sent just before, not answered yet, that must be stored first."""
        if self._seals:
            jobs = [self._sealed(job) for job in jobs]
        if len(jobs) == 1 and not behind:
            (job,) = jobs
            packed, plain = self._form_of(job.header)
            read = partial(answers.read_placed, (job.id,))
            return self.script_client.call("enqueue", (job.id, packed, job.payload), read, fast_keys=plain)
        ids, (forms, plain) = [job.id for job in jobs], self._forms(jobs)
        _page(jobs, PLAIN_PAGE if plain else PAGE)
        args: list[Argument] = [b""] * (3 * len(jobs))
        args[::3], args[1::3], args[2::3] = ids, forms, [job.payload for job in jobs]
        if behind:
            args.append(behind)
        read = partial(answers.read_placed, ids)
        return self.script_client.call("enqueue", tuple(args), read, fast_keys=plain, after_id=bool(behind))

    def _sealed(self, job: NewJob) -> NewJob:
        return NewJob(job.id, job.header, self.codecs.seal_payload(job.payload, job.header.task, job.id))

    def _forms(self, jobs: Sequence[NewJob]) -> tuple[list[bytes], bool]:
        """The packed headers, empty where one equals the one before; and whether all are plain and share one label."""
        first = jobs[0].header
        if all(job.header is first for job in jobs):
            packed, plain = self._form_of(first)
            return [packed, *[b""] * (len(jobs) - 1)], plain
        forms: list[bytes] = []
        header, before = None, b""
        for job in jobs:
            if job.header is not header:
                header, packed = job.header, pack(job.header)
            forms.append(b"" if packed == before else packed)
            before = packed
        return forms, is_plain(first) and not any(forms[1:])

    def _form_of(self, header: Header) -> tuple[bytes, bool]:
        """A packed header, and whether it is plain. The last one is cached: consecutive jobs mostly share it."""
        last, packed, plain = self._last_form
        if header is not last:
            packed, plain = pack(header), is_plain(header)
            self._last_form = header, packed, plain
        return packed, plain

    def promote(self, limit: int = PAGE) -> ScriptCall[Due]:
        return self.script_client.call("promote", (limit,), answers.read_due)

    def admit(self, limit: int = PAGE) -> ScriptCall[Due]:
        """Make held jobs ready in lanes whose rate allows more starts now."""
        return self.script_client.call("admit", (limit,), answers.read_due)

    def reschedule(self, ids: Sequence[str], due: int) -> ScriptCall[list[str]]:
        """Set another due time; a number below DELAY_BELOW is a delay from now."""
        return self.script_client.call("reschedule", (due, *_page(ids)), answers.read_words)

    def revive(self, ids: Sequence[str], edits: Mapping[str, Edit] = _NONE) -> ScriptCall[list[str]]:
        """Run dead or cancelled jobs again, some of them with other arguments."""
        args: list[Argument] = []
        for job_id in _page(ids):
            edit = edits.get(job_id)
            rest = _pack([edit.lanes, edit.unique]) if edit and edit.lanes is not None else b""
            args += (job_id, self._edited(edit, job_id) if edit else b"", rest)
        return self.script_client.call("revive", tuple(args), answers.read_words)

    def _edited(self, edit: Edit, job_id: str) -> bytes:
        return self.codecs.seal_payload(edit.payload, edit.task, job_id) if self._seals else edit.payload

    def transfer(self, ids: Sequence[str], queue: str) -> ScriptCall[list[str]]:
        """Move waiting jobs to another queue."""
        return self.script_client.call("transfer", (queue, *_page(ids)), answers.read_words)

    # Running

    def lease(
        self,
        worker: str,
        number: int,
        *,
        queues: Sequence[str] = ("*",),
        want: int = 1,
        answered: int = 0,
        room: int = MAX_ANSWER_BYTES,
        push: bool = False,
    ) -> ScriptCall[Leased]:
        """Take up to `want` jobs as call `number` of a worker that has the answers to all calls up to `answered`.

        `push`: if there is no job for the worker and it holds none, the server may lease it the next job by itself and
        publish it to the worker, as the answer to the worker's next call.
        """
        args: tuple[str | int, ...] = (worker, number, answered, min(want, PAGE), room, int(push), *queues)
        return self.script_client.call("lease", args, answers.read_leased)

    def complete(self, worker: str, jobs: Sequence[tuple[str, int, bytes]]) -> ScriptCall[list[str]]:
        """Each: id, call number, result (empty for nothing)."""
        return self.script_client.call("complete", (worker, *_flat(_page(jobs))), answers.read_words)

    def retry(self, worker: str, jobs: Sequence[tuple[str, int, int, str, str]]) -> ScriptCall[list[str]]:
        """Each: id, call number, delay in ms, reason, error as JSON."""
        return self.script_client.call("retry", (worker, *_flat(_page(jobs))), answers.read_words)

    def bury(self, worker: str, jobs: Sequence[tuple[str, int, str, str]]) -> ScriptCall[list[str]]:
        """Each: id, call number, reason, error as JSON."""
        rows = [(*job, error_fingerprint(job[3], job[2])) for job in _page(jobs)]
        return self.script_client.call("bury", (worker, *_flat(rows)), answers.read_words)

    def crash(
        self, worker: str, jobs: Sequence[tuple[str, int, str]], *, crashes: int = MAX_CRASHES
    ) -> ScriptCall[list[str]]:
        """Each: id, call number, cause as JSON. The process of the job died; the worker itself lives."""
        rows = [(job_id, number, crashes, cause) for job_id, number, cause in _page(jobs)]
        return self.script_client.call("crash", (worker, *_flat(rows)), answers.read_words)

    def release(self, worker: str, jobs: Sequence[tuple[str, int]]) -> ScriptCall[list[str]]:
        """Each: id, call number."""
        return self.script_client.call("release", (worker, *_flat(_page(jobs))), answers.read_words)

    def snooze(self, worker: str, jobs: Sequence[tuple[str, int, int, str]]) -> ScriptCall[list[str]]:
        """Each: id, call number, delay in ms, reason."""
        return self.script_client.call("snooze", (worker, *_flat(_page(jobs))), answers.read_words)

    def progress(self, worker: str, job_id: str, number: int, progress: str) -> ScriptCall[str]:
        return self.script_client.call("progress", (worker, job_id, number, progress), bytes.decode)

    def log(self, worker: str, jobs: Sequence[tuple[str, int, int, list[Any]]]) -> ScriptCall[list[str]]:
        """Each: id, call number, how many lines the attempt sent before, lines: [time in ms, attempt, level, text]."""
        rows = [(job_id, number, before, _pack(lines)) for job_id, number, before, lines in _page(jobs)]
        return self.script_client.call("log", (worker, *_flat(rows)), answers.read_words)

    # Leases of workers

    def register(self, worker: str, life: int, info: str = "{}", queues: Sequence[str] = ("*",)) -> ScriptCall[str]:
        if len(worker.encode()) > MAX_WORKER_BYTES:
            raise ValueError(f"the name of a worker has at most {MAX_WORKER_BYTES} bytes: {worker[:50]}…")
        return self.script_client.call("register", (worker, life, info, *queues), bytes.decode)

    def renew(self, life: int, workers: Sequence[str]) -> ScriptCall[Renewed]:
        """Fail early if no answer comes: a second call on another connection may still be in time."""
        seconds = min(max(life / 3000, MIN_RENEWAL_TIMEOUT), self.script_client.deadline)
        return self.script_client.call("renew", (life, *workers), answers.read_renewed).within(seconds)

    def retire(self, worker: str, limit: int = PAGE) -> ScriptCall[tuple[int, int]]:
        """End a worker: how many of its jobs were released, and 1 if there are more."""
        return self.script_client.call("retire", (worker, limit), answers.read_pair)

    def reap(
        self, life: int, *, limit: int = PAGE, crashes: int = MAX_CRASHES, cause: str = "{}"
    ) -> ScriptCall[tuple[int, int]]:
        """Take back the jobs of workers whose lease is over: how many, and 1 if there are more."""
        return self.script_client.call("reap", (limit, crashes, life, cause), answers.read_pair)

    def reap_worker(
        self,
        worker: str,
        started: Iterable[str],
        life: int,
        *,
        limit: int = PAGE,
        crashes: int = MAX_CRASHES,
        cause: str = "{}",
    ) -> ScriptCall[tuple[int, int]]:
        """Take back the jobs of a worker that is known to be dead; only jobs that it had started are charged."""
        return self.script_client.call("reap", (limit, crashes, life, cause, worker, *started), answers.read_pair)

    # Waiting for the end

    def watch(self, client: str, ids: Sequence[str]) -> ScriptCall[list[Watched]]:
        """Have a message sent to this client when these jobs finish; the answer has those that have finished."""
        return self.script_client.call("watch", (client, *_page(ids)), partial(answers.read_watched, ids, self.codecs))

    # Cancelling and forgetting

    def cancel(self, ids: Sequence[str], reason: str = "cancelled") -> ScriptCall[list[str]]:
        return self.script_client.call("cancel", (reason, *_page(ids)), answers.read_words)

    def discard(self, ids: Sequence[str]) -> ScriptCall[list[str]]:
        """Forget finished jobs before their time; only their ids are kept."""
        return self.script_client.call("discard", tuple(_page(ids)), answers.read_words)

    def expire(self, limit: int = PAGE) -> ScriptCall[Due]:
        return self.script_client.call("expire", (limit,), answers.read_due)

    def prune(self, keep: Retention = Retention(), limit: int = PAGE) -> ScriptCall[tuple[int, int]]:  # noqa: B008  (frozen)
        """How many were forgotten or made tombstones, and 1 if there are more."""
        args = (limit, keep.tomb_life, keep.finished, keep.tombs, keep.dead_life, keep.dead)
        return self.script_client.call("prune", args, answers.read_pair)

    # Queues and lanes

    def pause(self, queue: str) -> ScriptCall[str]:
        return self.script_client.call("pause", (queue,), bytes.decode)

    def resume(self, queue: str) -> ScriptCall[str]:
        return self.script_client.call("resume", (queue,), bytes.decode)

    def cap(self, queue: str, limit: int | None = None, most: int | None = None) -> ScriptCall[str]:
        """At most so many jobs of a queue run at once, and at most so many wait in it; -1: any number."""
        args = (queue, "" if limit is None else limit, "" if most is None else most)
        return self.script_client.call("cap", args, bytes.decode)

    def tune(self, lane: str, *, limit: int | None = None, paused: bool | None = None) -> ScriptCall[str]:
        """Set the limit of a lane by hand, or pause it; a limit of -1 returns to what the code says."""
        args = (lane, "" if limit is None else limit, "" if paused is None else int(paused))
        return self.script_client.call("tune", args, bytes.decode)

    # Schedules

    def set_cron(
        self, schedule: str, spec: ScheduleSpec, first: tuple[int, int], *, source: Source, worker: str = ""
    ) -> ScriptCall[str]:
        """Make or change a schedule; `first` is the nominal and the due time of its first tick from now."""
        if self._seals:
            payload = self.codecs.seal_payload(spec.payload, spec.task, f"{schedule}@")
            spec = msgspec.structs.replace(spec, payload=payload, sealed_version=self.codecs.digest(spec.version)[:16])
        head = (schedule, source, worker, spec.version, spec.pace, spec.overlap)
        return self.script_client.call(
            "set_cron", (*head, spec.task, spec.queue, *first, pack_spec(spec)), bytes.decode
        )

    def remove_cron(self, schedule: str) -> ScriptCall[str]:
        return self.script_client.call("remove_cron", (schedule,), bytes.decode)

    def pause_cron(self, schedule: str) -> ScriptCall[str]:
        return self.script_client.call("pause_cron", (schedule,), bytes.decode)

    def resume_cron(self, schedule: str, version: str, first: tuple[int, int]) -> ScriptCall[str]:
        return self.script_client.call("resume_cron", (schedule, version, *first), bytes.decode)

    def run_cron(self, schedule: str, spec: ScheduleSpec, job_id: str) -> ScriptCall[str]:
        """Make a job of this schedule now; its id names this request."""
        args = (schedule, spec.version, job_id, spec.form, spec.payload)
        return self.script_client.call("run_cron", args, bytes.decode)

    def due_crons(self, limit: int = 20, also: Sequence[str] = ()) -> ScriptCall[DueCrons]:
        """The schedules that are due, and those of `also` whose ticks wait for the job before them."""
        return self.script_client.call("due_crons", (limit, MAX_ANSWER_BYTES, *_page(also)), answers.read_due_crons)

    def tick(self, schedule: str, spec: ScheduleSpec, expected: int, ticks: Ticks) -> ScriptCall[tuple[str, int]]:
        """Claim the expected tick (-1: none) and make the jobs of all ticks to run: a word, and how many were made."""
        jobs = _flat((job_of(schedule, nominal), nominal) for nominal in ticks.run)
        head = (schedule, spec.version, expected, ticks.next, ticks.due, ticks.missed)
        return self.script_client.call("tick", (*head, spec.form, spec.payload, *jobs), answers.read_ticked)

    # Batches

    def open_batch(self, batch: NewBatch) -> ScriptCall[str]:
        head = (batch.id, batch.nonce, batch.name, batch.parent, batch.priority, batch.limit)
        rest = (batch.abandon_after, batch.keep, MAX_BATCH_DEPTH, pack_batch(batch.spec))
        return self.script_client.call("open_batch", (*head, *rest), bytes.decode)

    def seal_batch(self, batch: str) -> ScriptCall[str]:
        return self.script_client.call("seal_batch", (batch,), bytes.decode)

    def cancel_batch(self, batch: str, reason: str = "cancelled") -> ScriptCall[str]:
        """Flag the batch; `do_chores` then cancels its members page by page."""
        return self.script_client.call("cancel_batch", (batch, reason), bytes.decode)

    def retry_batch(self, batch: str, nonce: str) -> ScriptCall[str]:
        """Flag the batch; `do_chores` then revives its dead members page by page."""
        return self.script_client.call("retry_batch", (batch, nonce), bytes.decode)

    def set_batch(self, batch: str, *, priority: int | None = None, limit: int | None = None) -> ScriptCall[str]:
        args = (batch, "" if priority is None else priority, "" if limit is None else limit)
        return self.script_client.call("set_batch", args, bytes.decode)

    def do_chores(self, what: str = "", batch: str = "", *, limit: int = PAGE) -> ScriptCall[Chores]:
        """Do one page of the work on this batch, or on whatever batch has work that is due."""
        named = (f"{what}{SEPARATOR}{batch}",) if what else ()
        return self.script_client.call("do_chores", (limit, *named), answers.read_chores)

    def watch_batch(
        self, client: str, batch: str, *, finished: int = 0, after: int = 0, room: int = MAX_ANSWER_BYTES
    ) -> ScriptCall[WatchedBatch]:
        """Have a message sent to this client when the batch ends; with `finished`, when one after `after` finishes."""
        return self.script_client.call(
            "watch_batch", (client, batch, finished, after, room), partial(answers.read_watched_batch, self.codecs)
        )

    # Repair

    def reconcile(self, part: str, cursor: int = 0, limit: int = 100) -> ScriptCall[tuple[int, int]]:
        """Make one page of one part agree with the records: the next cursor (0: the end), and how much was repaired."""
        return self.script_client.call("reconcile", (part, cursor, limit), answers.read_pair)

    def recount(self, last_event: bytes, counts: dict[str, int]) -> ScriptCall[str]:
        args = tuple(_flat(counts.items()))
        return self.script_client.call("recount", (last_event, *args), bytes.decode)

    def all_keys(self) -> list[bytes]:
        return [self.keys(name) for name in KINDS]


def _page(items: Sequence[Any], most: int = PAGE) -> Sequence[Any]:
    if len(items) > most:
        raise ValueError(f"{len(items)} jobs in one call; a page has at most {most}")
    return items


def _flat(rows: Iterable[tuple[Argument, ...]]) -> list[Argument]:
    return [value for row in rows for value in row]
