"""Lists jobs by filter, in pages with a cursor. A page reads a bounded number of entries of one index.

A cursor is a place in an index, not a number, so that jobs which come and go meanwhile neither hide others nor show
them twice.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR
from penstock.engine.record.record import read_header, read_payload
from penstock.errors import BadOption
from penstock.model.codec import tags_of
from penstock.model.header import Attempt, Header

MAX_ENTRIES: Final = 500  #: of an index that are read for one page
_MAX_DEEP_ENTRIES: Final = 100  #: the same if contents are read, too
_AFTER: Final = chr(ord(SEPARATOR) + 1)
_history = msgspec.msgpack.Decoder(list[Attempt]).decode

#: state → the index that has it
_INDEX: Final = {
    "running": "leases",
    "ready": "ready",
    "held": "held",
    "scheduled": "scheduled",
    "dead": "dead",
    "done": "finished",
    "cancelled": "finished",
}
_LEXICAL: Final = frozenset({"leases", "ready", "held", "deaths", "roster"})
#: state → the first and the last kind of entry that `roster` has for such members; all of them are from f to u
_MEMBERS: Final = {
    **dict.fromkeys(("scheduled", "held", "ready", "running"), ("u", "u")),
    "done": ("f", "f"),
    "dead": ("x", "x"),
    "cancelled": ("c", "c"),
}


class Filter(NamedTuple):
    """Which jobs; a field with its default matches all."""

    queue: str | None = None
    task: str | None = None  #: without a module, it matches the tasks of that name in all modules
    state: str | None = None
    tag: str | None = None
    error: str | None = None  #: a part of the last error's class or message
    group: str | None = None  #: the fingerprint of a dead job's error
    since: int = 0  #: in their state since this time or later, ms
    until: int = 0  #: or since this time or earlier; 0: any
    batch: str | None = None

    @property
    def is_deep(self) -> bool:
        """Whether more than the headers must be read."""
        return self.tag is not None or self.error is not None

    def fits(self, header: Header) -> bool:
        """Whether the header matches."""
        return (
            not header.compact
            and self.queue in {None, header.queue}
            and self.task in {None, header.task, header.task.rpartition(":")[2]}
            and self.state in {None, header.state}
            and self.group in {None, header.death}
            and self.batch in {None, header.batch}
            and header.since >= self.since
            and (not self.until or header.since <= self.until)
        )


class Listed(NamedTuple):
    """A job that matches; tags and failed attempts are read only on request."""

    id: str
    header: Header
    tags: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()


class JobPage(NamedTuple):
    """The matches among the entries that were read, and the cursor of the next page; empty at the end."""

    jobs: list[Listed]
    cursor: str


class Listing:
    """The jobs of one namespace, index by index."""

    def __init__(self, engine: Engine) -> None:
        self._script_client = engine.script_client
        self._key = engine.keys
        self._codecs = engine.codecs

    async def each(self, wanted: Filter, *, newest: bool = False, contents: bool = False) -> AsyncIterator[Listed]:
        """All matches, however many pages that takes; at most one page is in memory."""
        cursor: str = ""
        while True:
            page = await self.page(wanted, cursor, newest=newest, contents=contents)
            for job in page.jobs:
                yield job
            if not (cursor := page.cursor):
                return

    async def page(
        self, wanted: Filter, cursor: str = "", *, newest: bool = False, contents: bool = False, most: int | None = None
    ) -> JobPage:
        """A page of jobs, in the order of their index: the next to run first, the longest dead first, or `newest`."""
        indexes = _indexes(wanted)
        index, _, place = _opened(cursor).partition("@") if cursor else (indexes[0], "", "")
        if index not in indexes:
            raise BadOption(f"cursor={cursor!r}: not one of this listing")
        looks = _MAX_DEEP_ENTRIES if wanted.is_deep or contents else MAX_ENTRIES
        find = self._by_name if index in _LEXICAL else self._by_time
        members, last = await find(index, wanted, place, looks, newest=newest)
        by_id = {member.rpartition(SEPARATOR)[2]: member for member in members}
        jobs = await self._jobs(list(by_id), wanted, deep=contents)
        if most is not None and len(jobs) > most:
            jobs = jobs[:most]
            last = by_id[jobs[-1].id]
        if last:
            return JobPage(jobs, _closed(f"{index}@{last}"))
        rest = indexes[indexes.index(index) + 1 :]
        return JobPage(jobs, _closed(f"{rest[0]}@") if rest else "")

    async def _by_name(
        self, index: str, wanted: Filter, place: str, looks: int, *, newest: bool
    ) -> tuple[list[str], str]:
        """The next members, and the last one if there may be more."""
        first, last = _range(index, wanted)
        if place:
            first, last = (first, f"({place}") if newest else (f"({place}", last)
        key, bounds = self._key(index), (last, first) if newest else (first, last)
        rows = await self._script_client.ask(
            lambda client: client.zrange(key, *bounds, bylex=True, desc=newest, offset=0, num=looks)
        )
        members = [member.decode(errors="replace") for member in rows]
        return members, members[-1] if len(members) == looks else ""

    async def _by_time(
        self, index: str, wanted: Filter, place: str, looks: int, *, newest: bool
    ) -> tuple[list[str], str]:
        """The same for an index by time; each member has its time in front."""
        key = self._key(index)
        rank = (
            await self._script_client.ask(lambda client: self._rank(client, key, place, newest=newest)) if place else 0
        )
        rows = await self._script_client.ask(
            lambda client: client.zrange(key, rank, rank + looks - 1, desc=newest, withscores=True)
        )
        members = [f"{score:.0f}{SEPARATOR}{member.decode(errors='replace')}" for member, score in rows if member]
        last = members[-1] if len(rows) == looks and members else ""
        if index == "dead" and members and _is_past(members[-1], wanted, newest=newest):
            last = ""  # sorted by time: no later entry can match
        return [member for member in members if not place or _is_after(member, place, newest=newest)], last

    async def _rank(self, client: Any, key: bytes, place: str, *, newest: bool) -> int:
        """The rank after an entry, even if the entry is gone."""
        score, _, member = place.partition(SEPARATOR)
        rank = await (client.zrevrank if newest else client.zrank)(key, member)
        if rank is not None:
            return int(rank) + 1
        bounds = (f"({score}", "+inf") if newest else ("-inf", f"({score}")
        return int(await client.zcount(key, *bounds))

    async def _jobs(self, ids: list[str], wanted: Filter, *, deep: bool) -> list[Listed]:
        if not ids:
            return []
        raw = await self._script_client.ask(lambda client: client.hmget(self._key("jobs"), ids))
        show = self._codecs.shown_header
        jobs = [Listed(job_id, show(header, job_id)) for job_id, header in _readable(ids, raw) if wanted.fits(header)]
        if not jobs or not (deep or wanted.is_deep):
            return jobs
        chosen = [job.id for job in jobs]
        small = [job.id for job in jobs if job.header.size < 2**16 or wanted.tag is not None]
        payloads, attempts = await self._script_client.ask(
            lambda client: self._contents(client, small, chosen).execute()
        )
        stored = dict(zip(ids, raw, strict=True))
        inside = {job_id: read_payload(stored[job_id] or b"") for job_id in small}
        tags = {job_id: tags_of(payload or inside[job_id]) for job_id, payload in zip(small, payloads, strict=False)}
        full = [
            job._replace(tags=tags.get(job.id, ()), attempts=self._attempts(job, history))
            for job, history in zip(jobs, attempts, strict=True)
        ]
        return [job for job in full if _fits_deep(job, wanted)]

    def _attempts(self, job: Listed, raw: bytes | None) -> tuple[Attempt, ...]:
        try:
            attempts = _history(raw) if raw else []
        except msgspec.MsgspecError:
            return ()
        return tuple(self._codecs.shown_attempts(attempts, job.header.task, job.id))

    def _contents(self, client: Any, small: Iterable[str], chosen: Iterable[str]) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.hmget(self._key("payloads"), [*small, ""])
        pipe.hmget(self._key("attempts"), list(chosen))
        return pipe


def _range(index: str, wanted: Filter) -> tuple[str, str]:
    """The range of a lexical index that can have matches."""
    if index == "roster":
        low, high = _MEMBERS.get(wanted.state or "", ("f", "u"))
        return f"[{wanted.batch}{SEPARATOR}{low}{SEPARATOR}", f"({wanted.batch}{SEPARATOR}{high}{_AFTER}"
    prefix = wanted.group if index == "deaths" else wanted.queue if index == "ready" else None
    return ("(", "+") if prefix is None else (f"[{prefix}{SEPARATOR}", f"({prefix}{_AFTER}")


def _indexes(wanted: Filter) -> list[str]:
    if wanted.batch is not None:
        return ["roster"]
    if wanted.group is not None:
        return ["deaths"]
    if wanted.state is not None:
        return [_INDEX[wanted.state]]
    return list(dict.fromkeys(_INDEX.values()))


def _is_past(member: str, wanted: Filter, *, newest: bool) -> bool:
    """Whether all later entries are too old, or too young."""
    at = int(member.partition(SEPARATOR)[0])
    return at < wanted.since if newest else bool(wanted.until) and at > wanted.until


def _closed(cursor: str) -> str:
    """A cursor as text that is safe on a command line and in a URL."""
    return base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def _opened(cursor: str) -> str:
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError:
        raise BadOption(f"cursor={cursor!r}: not one that a listing gave") from None


def _is_after(member: str, place: str, *, newest: bool) -> bool:
    (score, _, name), (before, _, last) = member.partition(SEPARATOR), place.partition(SEPARATOR)
    entry, cursor = (int(score), name), (int(before), last)
    return entry < cursor if newest else entry > cursor


def _readable(ids: list[str], raw: list[bytes | None]) -> Iterable[tuple[str, Header]]:
    for job_id, packed in zip(ids, raw, strict=True):
        if packed:
            try:
                yield job_id, read_header(packed)
            except (msgspec.MsgspecError, TypeError):
                continue  # the audit reports it


def _fits_deep(job: Listed, wanted: Filter) -> bool:
    if wanted.tag is not None and wanted.tag not in job.tags:
        return False
    return wanted.error is None or wanted.error.casefold() in f"{error_of(job)} {job.header.reason}".casefold()


def error_of(job: Listed) -> str:
    """Class and message of the last failed attempt."""
    if not job.attempts:
        return ""
    try:
        error = json.loads(job.attempts[-1].error)
        return f"{error.get('type', '')}: {error.get('message', '')}"
    except (ValueError, AttributeError):
        return job.attempts[-1].error
