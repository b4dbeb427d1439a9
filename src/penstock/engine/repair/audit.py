"""The audit: reads everything in a namespace, in pages, and reports each broken invariant.

It shares no code with the scripts on purpose, so a mistake in them is found. A job belongs in exactly one index: the
forward half looks up the index entry of each record, the backward half the record of each index entry.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection
from typing import Any, NamedTuple

import msgspec
from redis.exceptions import NoPermissionError

from penstock.engine.engine import Engine
from penstock.engine.keys import KINDS, SEPARATOR, rank
from penstock.engine.record.lane_entry import specs_of, waiting_place
from penstock.engine.record.record import is_owner, read_header, read_payload
from penstock.engine.repair.audit_batches import BatchCounts
from penstock.engine.repair.audit_lanes import LaneCounts
from penstock.engine.repair.audit_queues import check_heads
from penstock.engine.repair.audit_skills import check_skills
from penstock.model.header import FINISHED, WAITING, Header
from penstock.model.schedule import unpack, unpack_standing

_PAGE = 500
_KEPT = ("missing", "kept", "kept twice")
_INDEXES = ("ready", "held", "scheduled", "leases", "dead", "finished", "tombs")
_BY_NUMBER = (
    "heads",
    "scheduled",
    "openings",
    "timers",
    "workers",
    "retired",
    "dead",
    "finished",
    "tombs",
    "ticks",
    "chores",
    "lives",
)


class Finding(NamedTuple):
    """One broken invariant."""

    rule: str
    subject: str
    text: str


class Place(NamedTuple):
    """The index entry that a job must have in its state."""

    key: str
    score: float
    member: bytes


def place(job_id: str, header: Header) -> Place:
    """The one index entry that a job with this header has."""
    match header.state:
        case "ready":
            member = SEPARATOR.join((header.queue, rank(header.priority, header.seq), job_id))
            return Place("ready", 0, member.encode())
        case "running":
            return Place("leases", 0, f"{header.claim}{SEPARATOR}{job_id}".encode())
        case "held":
            return Place("held", 0, SEPARATOR.join((*waiting_place(header), job_id)).encode())
        case "scheduled":
            return Place("scheduled", header.due, job_id.encode())
        case _:
            return Place(*_last_place(header), job_id.encode())


def _last_place(header: Header) -> tuple[str, float]:
    if header.compact:
        return "tombs", header.since
    return ("dead", header.since) if header.state == "dead" else ("finished", header.since + header.keep)


def read_sound(raw: bytes) -> Header:
    """The header from a record; raises an error if it cannot be read, or refers to lanes that the job does not have."""
    header = read_header(raw)
    places = range(1, len(specs_of(header)) + 1)
    if header.state in {"held", "ready"} and (header.lanes or header.state == "held") and header.home not in places:
        raise ValueError(f"waits in lane {header.home} of {len(places)}")
    if header.turn > len(places):
        raise ValueError(f"has the turn in lane {header.turn} of {len(places)}")
    return header


async def audit(engine: Engine) -> list[Finding]:
    """Every broken invariant; an empty list means that all is sound."""
    return await _Audit(engine).run()


class _Audit:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._key = engine.keys
        self._client: Any = None
        self._meta: dict[bytes, bytes] = {}
        self._counted: Counter[str] = Counter()
        self._lanes = LaneCounts()
        self._batches = BatchCounts()
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        self._client = await self._engine.script_client.endpoint.client()
        self._meta = await self._client.hgetall(self._key("meta"))
        if not self._meta and not await self._client.exists(*self._engine.all_keys()):
            return []
        await self._check_keys()
        async for page in self._pages("batches"):
            for name, raw in page:
                self._batches.know(name, raw)
        await self._check_jobs()
        for index in _INDEXES:
            await self._check_index(index)
        await self._check_guards()
        await self._check_obituaries()
        await self._check_contents()
        await self._check_counts()
        await self._check_workers()
        await self._check_skills()
        await self._check_crons()
        await self._check_lanes()
        await self._check_batches()
        return self._findings

    def _report(self, rule: str, subject: str | bytes, text: str) -> None:
        name = subject.decode(errors="replace") if isinstance(subject, bytes) else subject
        self._findings.append(Finding(rule, name.replace(SEPARATOR, "|"), text))

    async def _check_keys(self) -> None:
        known = {self._key(name): kind for name, kind in KINDS.items()}
        pipe = self._client.pipeline(transaction=False)
        for key in known:
            pipe.type(key)
        for key, kind in zip(known, await pipe.execute(), strict=True):
            if kind == b"none":
                self._report("keys", key, "is missing")
            elif kind.decode() != known[key]:
                self._report("keys", key, f"is a {kind.decode()}, not a {known[key]}")
        for key in await self._all_keys():
            if key not in known:
                self._report("keys", key, "is not a key of ours")
        await self._check_sentinels()

    async def _all_keys(self) -> list[bytes]:
        """All keys of the namespace; none for a user who may not list the keys of the server."""
        try:
            return [key async for key in self._client.scan_iter(match=self._key.prefix + "*", count=1000)]
        except NoPermissionError:
            return []

    async def _check_sentinels(self) -> None:
        pipe = self._client.pipeline(transaction=False)
        names = [name for name in KINDS if name not in {"meta", "events"}]
        for name in names:
            (pipe.hexists if KINDS[name] == "hash" else pipe.zscore)(self._key(name), "")
        for name, value in zip(names, await pipe.execute(raise_on_error=False), strict=True):
            if value != (True if KINDS[name] == "hash" else float("inf") if name in _BY_NUMBER else 0):
                self._report("keys", self._key(name), "has no sentinel")

    # Forward: from each record to its index entry

    async def _check_jobs(self) -> None:
        async for page in self._pages("jobs"):
            headers, inside = dict[str, Header](), set[str]()
            for job_id, raw in page:
                try:
                    headers[job_id.decode()] = read_sound(raw)
                    if read_payload(raw) is not None:
                        inside.add(job_id.decode())
                    if is_owner(raw):
                        self._lanes.add_owner(job_id.decode(), headers[job_id.decode()])
                except (msgspec.MsgspecError, ValueError, TypeError) as error:
                    self._report("header", job_id, f"cannot be read: {error}")
            await self._check_page(headers, inside)

    async def _check_page(self, headers: dict[str, Header], inside: set[str]) -> None:
        """`inside`: ids of jobs whose payload is part of the record."""
        pipe = self._client.pipeline(transaction=False)
        for job_id, header in headers.items():
            where = place(job_id, header)
            pipe.zscore(self._key(where.key), where.member)
            pipe.hexists(self._key("payloads"), job_id)
            pipe.hexists(self._key("results"), job_id)
            pipe.zscore(self._key("timers"), f"expire{SEPARATOR}{job_id}")
            pipe.hget(self._key("unique"), header.unique)
            pipe.zscore(self._key("cancels"), f"{header.claim.split(SEPARATOR)[0]}{SEPARATOR}{job_id}")
        answers = await pipe.execute()
        for i, (job_id, header) in enumerate(headers.items()):
            self._check_header(job_id, header)
            entries = answers[i * 6 : i * 6 + 6]
            entries[1] += job_id in inside
            self._check_entries(job_id, header, *entries)
        rosters = ((self._batches.expected(job_id, header)) for job_id, header in headers.items())
        await self._check_listed([entry for entries in rosters for entry in entries])
        await self._check_deaths(headers)

    async def _check_listed(self, entries: list[str]) -> None:
        scores = await self._client.zmscore(self._key("roster"), entries) if entries else []
        for entry, score in zip(entries, scores, strict=True):
            if score is None:
                self._report("roster", entry, "is missing")

    async def _check_deaths(self, headers: dict[str, Header]) -> None:
        dead = [job_id for job_id, header in headers.items() if _is_dead(header)]
        pipe = self._client.pipeline(transaction=False)
        for job_id in dead:
            pipe.zscore(self._key("deaths"), _obituary(job_id, headers[job_id]))
        for job_id, score in zip(dead, await pipe.execute(), strict=True):
            if score is None:
                self._report("deaths", job_id, "is dead, but not listed under its error")

    def _check_header(self, job_id: str, header: Header) -> None:
        self._lanes.add(job_id, header)
        if not header.compact:
            self._counted[f"{header.queue}{SEPARATOR}{header.state}"] += 1
        if header.seq > int(self._meta.get(b"seq", 0)) or header.fence > int(self._meta.get(b"fence", 0)):
            self._report("sequence", job_id, "is ahead of the counters in meta")
        used = header.failures + header.crashes + header.releases + (header.state in {"running", "done"})
        if header.starts - used not in (
            {0, 1} if header.state == "cancelled" else {0}
        ):  # 1: it was cancelled while it ran
            self._report("starts", job_id, f"{header.starts} starts, but {used} are accounted for")
        if (header.state == "running") != bool(header.claim):
            self._report("claim", job_id, f"is {header.state} with claim {header.claim!r}")
        if header.state == "ready" and header.due > header.since:
            self._report("due", job_id, "became ready before it was due")
        if header.cancelling and header.state != "running":
            self._report("cancelling", job_id, f"is flagged, but {header.state}")
        if header.state == "dead" and not header.reason:
            self._report("reason", job_id, "is dead for no reason")

    def _check_entries(
        self,
        job_id: str,
        header: Header,
        score: float | None,
        payloads: int,
        result: bool,  # noqa: FBT001
        timer: float | None,
        holder: bytes | None,
        flag: float | None,
    ) -> None:
        where = place(job_id, header)
        unfinished = header.state not in FINISHED
        if score != where.score:
            self._report("place", job_id, f"is {header.state}, but in {where.key} its score is {score}")
        lost = header.size < 0 or (header.state == "dead" and header.reason == "payload_lost")
        if payloads != (header.state != "done" and not header.compact) and not lost:
            self._report("payload", job_id, f"is {header.state}, payload {_KEPT[payloads]}")
        if result != (header.result == 1 and not header.compact):
            self._report("result", job_id, f"says {header.result}, result {'kept' if result else 'missing'}")
        if timer != (header.expires if header.expires and header.state in WAITING else None):
            self._report("timer", job_id, f"is {header.state}, expires {header.expires}, timer {timer}")
        if header.unique and unfinished and holder != job_id.encode():
            self._report("unique", job_id, f"is unfinished, but {header.unique!r} is held by {holder!r}")
        if (flag is not None) != bool(header.cancelling):
            self._report("cancels", job_id, f"cancelling {header.cancelling}, flag {flag}")

    # Backward: from each index entry to its record

    async def _check_index(self, index: str) -> None:
        async for page in self._pages(index):
            headers = await self._headers([_job_of(member) for member, _ in page])
            for (member, _), (job_id, header) in zip(page, headers, strict=True):
                if header is None or place(job_id, header)[::2] != (index, member):
                    self._report(index, member, f"belongs to a job that is {header.state if header else 'missing'}")

    async def _check_guards(self) -> None:
        async for page in self._pages("timers"):
            for (member, _), (_, header) in zip(page, await self._headers([_job_of(m) for m, _ in page]), strict=True):
                if header is None or not header.expires or header.state not in WAITING:
                    self._report("timers", member, "would expire a job that does not wait")
        async for page in self._pages("cancels"):
            for (member, _), (_, header) in zip(page, await self._headers([_job_of(m) for m, _ in page]), strict=True):
                flagged = member.partition(SEPARATOR.encode())[0].decode(errors="replace")
                if header is None or not header.cancelling or header.claim.split(SEPARATOR)[0] != flagged:
                    self._report("cancels", member, "flags a job that is not being cancelled")
        async for page in self._pages("unique"):
            for (name, _), (_, header) in zip(
                page, await self._headers([job.decode(errors="replace") for _, job in page]), strict=True
            ):
                if header is None or header.unique.encode() != name or header.state in FINISHED:
                    self._report("unique", name, "has no unfinished holder")
        await self._check_waiting()

    async def _check_waiting(self) -> None:
        async for page in self._pages("waiting"):
            for job_id, header in await self._headers([name.decode(errors="replace") for name, _ in page]):
                batch = self._batches.states.get(job_id.partition("}")[2]) if job_id.startswith("{") else None
                if batch is not None and batch.phase != "ended":
                    continue
                if header is None or header.state in FINISHED:
                    self._report("waiting", job_id, "is awaited, but no client will be notified")

    async def _check_obituaries(self) -> None:
        async for page in self._pages("deaths"):
            for (member, _), (job_id, header) in zip(
                page, await self._headers([_job_of(m) for m, _ in page]), strict=True
            ):
                if header is None or not _is_dead(header) or _obituary(job_id, header) != member:
                    self._report("deaths", member, "belongs to no dead job")

    async def _check_contents(self) -> None:
        for part in ("payloads", "results", "attempts", "logs"):
            async for page in self._pages(part):
                for job_id, header in await self._headers([name.decode(errors="replace") for name, _ in page]):
                    if header is None or header.compact:
                        self._report(part, job_id, "is kept for a job that is gone")

    async def _check_counts(self) -> None:
        pages = [page async for page in self._pages("counts")]
        stored = {name.decode(errors="replace"): int(n) for page in pages for name, n in page}
        ready = {name: 0 for name in self._counted if name.endswith(f"{SEPARATOR}ready")}  # counted in `ready` itself
        for name, counted in (dict.fromkeys(stored, 0) | self._counted | ready).items():
            if stored.get(name, 0) != counted:
                self._report("counts", name, f"says {stored.get(name, 0)}, counted {counted}")
        queues = {
            name.decode(errors="replace"): setting async for page in self._pages("queues") for name, setting in page
        }
        if any(queues.values()) and b"settings" not in self._meta:
            self._report("settings", "meta", "does not say that a queue has settings, so enqueue ignores them")
        for queue in {name.split(SEPARATOR)[0] for name in self._counted} - queues.keys():
            self._report("queues", queue, "has jobs, but is not listed")
        await self._check_heads(queues.keys())
        kept = await self._client.hlen(self._key("jobs")) - 1
        accepted, forgotten = (int(self._meta.get(name, 0)) for name in (b"accepted", b"forgotten"))
        if accepted != kept + forgotten:
            self._report("conservation", "meta", f"{accepted} accepted, {kept} kept, {forgotten} forgotten")

    async def _check_heads(self, known: Collection[str]) -> None:
        heads = {name: score async for page in self._pages("heads") for name, score in page}
        ready = {queue for queue, _, state in (name.partition(SEPARATOR) for name in self._counted) if state == "ready"}
        async for finding in check_heads(self._engine, heads, set(known), sorted(ready)):
            self._report(*finding)

    async def _check_workers(self) -> None:
        alive = {name async for page in self._pages("workers") for name, _ in page}
        retired = {name async for page in self._pages("retired") for name, _ in page}
        lives = {name: life async for page in self._pages("lives") for name, life in page}
        registered = {name: _life_in(raw) async for page in self._pages("nodes") for name, raw in page}
        nodes = registered.keys()
        calls = {name async for page in self._pages("calls") for name, _ in page}
        idle = {name.rpartition(b"\x1f")[2] async for page in self._pages("idle") for name, _ in page}
        holding = {name.partition(b"\x1f")[0] async for page in self._pages("leases") for name, _ in page}
        for rule, names in (
            ("nodes", nodes ^ alive),
            ("lives", lives.keys() - alive),
            ("lives", {name for name in alive & nodes if registered[name] not in {0, lives.get(name)}}),
            ("calls", calls - alive),
            ("idle", idle - alive),
            ("leases", holding - alive),
            ("retired", retired & alive),
        ):
            for name in names:
                self._report(rule, name, "does not agree with the live workers")

    async def _check_skills(self) -> None:
        nodes = {name: raw async for page in self._pages("nodes") for name, raw in page}
        entries = {entry async for page in self._pages("skills") for entry, _ in page}
        for finding in check_skills(nodes, entries, self._meta):
            self._report(*finding)

    async def _check_crons(self) -> None:
        specs, looks = set[str](), dict[str, float]()
        async for page in self._pages("crons"):
            for name, raw in page:
                what, _, schedule = name.decode(errors="replace").partition(SEPARATOR)
                try:
                    if what == "spec":
                        unpack(raw)
                        specs.add(schedule)
                    else:
                        standing = unpack_standing(raw)
                        looks[schedule] = standing.look if standing.status == "active" else -1
                except msgspec.MsgspecError as error:
                    self._report("crons", schedule, f"its {what} cannot be read: {error}")
        for schedule in specs ^ looks.keys():
            self._report("crons", schedule, "is stored by half")
        ticks = {name.decode(): score async for page in self._pages("ticks") for name, score in page}
        for schedule in {schedule_id for schedule_id, at in looks.items() if at >= 0} | ticks.keys():
            if ticks.get(schedule, -1) != looks.get(schedule, -1):
                self._report(
                    "ticks", schedule, f"to be looked at {looks.get(schedule)}, but {ticks.get(schedule)} is set"
                )
        async for page in self._pages("keepers"):
            for name, _ in page:
                if name.partition(b"\x1f")[0].decode(errors="replace") not in looks:
                    self._report("keepers", name, "has a schedule that does not exist in its code")

    def _check_halted(self, limits: dict[bytes, bytes]) -> None:
        """Compare the list of paused tasks that lease reads with the settings made by hand."""
        said = set(self._meta.get(b"halted", b"").split(SEPARATOR.encode())) - {b""}
        paused = {name[5:] for name, raw in limits.items() if name.startswith(b"task:") and _paused(raw)}
        for task in paused - said:
            self._report("halted", task, "is paused, but not in the list that lease reads")

    async def _check_lanes(self) -> None:
        rows = {name: [row async for page in self._pages(name) for row in page] for name in ("lanes", "limits")}
        holders = {member async for page in self._pages("holders") for member, _ in page}
        openings = {name async for page in self._pages("openings") for name, _ in page}
        self._check_halted(dict(rows["limits"]))
        for rule, subject, text in self._lanes.check(dict(rows["lanes"]), dict(rows["limits"]), holders, openings):
            self._report(rule, subject, text)

    async def _check_batches(self) -> None:
        await self._check_listed(list(self._batches.inside()))
        chores = {name.decode(errors="replace") async for page in self._pages("chores") for name, _ in page}
        async for page in self._pages("roster"):
            headers = await self._headers([_job_of(entry) for entry, _ in page])
            for (entry, _), (_, header) in zip(page, headers, strict=True):
                for finding in self._batches.check_entry(entry.decode(errors="replace"), header, chores):
                    self._report(*finding)
        limits = {name: value async for page in self._pages("limits") for name, value in page}
        for finding in self._batches.check(chores, limits):
            self._report(*finding)

    async def _headers(self, ids: list[str]) -> list[tuple[str, Header | None]]:
        raw = await self._client.hmget(self._key("jobs"), ids)
        return [(job_id, _readable(header)) for job_id, header in zip(ids, raw, strict=True)]

    async def _pages(self, name: str) -> AsyncIterator[list[tuple[bytes, Any]]]:
        """Fields and values, or members and scores, without the sentinel."""
        cursor, scan = 0, self._client.hscan if KINDS[name] == "hash" else self._client.zscan
        while True:
            cursor, page = await scan(self._key(name), cursor, count=_PAGE)
            rows = page.items() if isinstance(page, dict) else page
            if page := [(member, value) for member, value in rows if member]:
                yield page
            if cursor == 0:
                return


def _is_dead(header: Header) -> bool:
    return header.state == "dead" and not header.compact


def _obituary(job_id: str, header: Header) -> bytes:
    return SEPARATOR.join((header.death, f"{header.since:014d}", job_id)).encode()


def _paused(raw: bytes) -> bool:
    try:
        return bool(msgspec.msgpack.decode(raw)[1])
    except (msgspec.MsgspecError, TypeError, IndexError):
        return False


def _life_in(node: bytes) -> int:
    """The length of the lease that a worker registered; 0 if it is lost."""
    try:
        return int(msgspec.msgpack.decode(node)[2])
    except (msgspec.MsgspecError, TypeError, ValueError, LookupError):
        return 0


def _job_of(member: bytes) -> str:
    return member.rpartition(SEPARATOR.encode())[2].decode(errors="replace")


def _readable(raw: bytes | None) -> Header | None:
    try:
        return read_sound(raw) if raw is not None else None
    except (msgspec.MsgspecError, ValueError, TypeError):
        return None
