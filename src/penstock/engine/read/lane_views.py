"""The state of lanes: which jobs have slots, how many wait, what the code declares and what was set by hand."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.engine.keys import SEPARATOR
from penstock.engine.record.record import read_header
from penstock.engine.transport.script_client import ScriptClient

_decode = msgspec.msgpack.Decoder(list[Any]).decode
_HOLDERS = 100


class LaneStatus(NamedTuple):
    """A lane or a lock at one moment."""

    name: str
    is_lock: bool
    limit: int | None  #: the limit in force; None: no limit
    in_use: int
    waiting: int
    paused: bool
    set_by_hand: bool  #: the limit was set by hand
    rate: str  #: starts per second, '' without a rate
    burst: int
    ordered: bool
    holders: list[str]  #: ids of jobs that have a slot, the first hundred
    conflict: str  #: what other code declared for the same name, '' if nothing


def split(stored: str) -> tuple[bool, str]:
    """Whether it is a lock, and its name; lanes of tasks and batches keep their prefix."""
    kind, _, name = stored.partition(":")
    return kind == "lock", stored if kind in {"task", "batch"} else name


class LaneViews:
    """Questions about the lanes of one namespace."""

    def __init__(self, script_client: ScriptClient) -> None:
        self._script_client = script_client
        self._key = script_client.keys

    async def lane(self, stored: str) -> LaneStatus:
        """The status of a lane by its stored name, `lock:…` or `lane:…`; a lane that is not in use is empty."""
        parts = await self._script_client.ask(lambda client: self._parts(client, stored).execute())
        owner = _owner(parts[0])
        raw = await self._script_client.ask(lambda client: client.hget(self._key("jobs"), owner)) if owner else None
        return _status(stored, parts, owner if _runs(raw) else "")

    async def every(self, most: int = 10_000) -> list[LaneStatus]:
        """All lanes that are in use or were set by hand."""
        return [await self.lane(name) for name in await self.names(most)]

    async def names(self, most: int = 10_000) -> list[str]:
        """The stored names of all these lanes, sorted."""
        return sorted(await self._script_client.ask(lambda client: self._names(client, most)))

    async def declared(self, names: Sequence[str]) -> dict[str, str]:
        """Stored name → what was declared last of its limit, rate, burst and kind, as a job's header has it."""
        raw = await self._script_client.ask(lambda client: client.hmget(self._key("lanes"), names))
        return {name: str(_record(record)[3]) for name, record in zip(names, raw, strict=True) if record}

    async def opens(self, queues: Collection[str]) -> bool:
        """Whether the waiting jobs of these queues will get a slot of the lane without anybody's help."""
        records = await self._script_client.ask(lambda client: client.hgetall(self._key("lanes")))
        for name, raw in records.items():
            record = _record(raw) if name else []
            waited = any(queue in queues and number for queue, number in zip(record[5::4], record[6::4], strict=True))
            if waited and await self._will_open(name.decode()):
                return True
        return False

    async def _will_open(self, stored: str) -> bool:
        status = await self.lane(stored)
        if status.paused or status.limit == 0:
            return False
        opening = await self._script_client.ask(lambda client: client.zscore(self._key("openings"), stored))
        if opening is not None and self._script_client.test_clock is None:  # a test has to move that clock
            return True
        holders = status.holders
        records = (
            await self._script_client.ask(lambda client: client.hmget(self._key("jobs"), holders)) if holders else []
        )
        return any(_runs(raw) for raw in records)

    async def _names(self, client: Any, most: int) -> set[str]:
        names: set[str] = set()
        for part in ("lanes", "limits"):
            async for name, _ in client.hscan_iter(self._key(part), count=500):
                if name and len(names) < most:
                    names.add(name.decode())
        return names

    def _parts(self, client: Any, stored: str) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.hget(self._key("lanes"), stored)
        pipe.hget(self._key("limits"), stored)
        first, last = f"[{stored}{SEPARATOR}", f"({stored} "
        pipe.zrange(self._key("holders"), first, last, bylex=True, offset=0, num=_HOLDERS)
        return pipe


def _runs(raw: bytes | None) -> bool:
    try:
        return read_header(raw or b"").state == "running"
    except msgspec.MsgspecError:
        return False  # the audit reports it


def _record(raw: bytes) -> list[Any]:
    """The stored record of a lane. An unreadable one counts as unused; the audit reports it."""
    try:
        return _decode(raw)
    except msgspec.MsgspecError:
        return [0, 0, 0, "", ""]


def _owner(raw: bytes | None) -> str:
    """The job that owns a lock, from when it becomes ready until it has run: see lib/locks.lua."""
    record = _record(raw) if raw else [0]
    return str(record[8]) if record[0] == -1 and len(record) > 8 else ""


def _status(stored: str, parts: Iterable[Any], owner: str) -> LaneStatus:
    """`owner`: the job that owns the lock, if it is running."""
    raw, by_hand, holders = parts
    record: list[Any] = _record(raw) if raw else [0, 0, 0, "", ""]
    fixed, paused = (_record(by_hand) if by_hand else [-1, 0])[:2]
    is_lock, name = split(stored)
    limit, rate, burst, kind = _declared(str(record[3]))
    declared = 1 if is_lock else limit
    return LaneStatus(
        name=name,
        is_lock=is_lock,
        limit=fixed if fixed >= 0 else declared,
        in_use=max(int(record[0]), int(bool(owner))),
        waiting=sum(int(number) for number in record[6::4]),
        paused=bool(paused),
        set_by_hand=fixed >= 0,
        rate=rate,
        burst=burst,
        ordered=bool(kind),
        holders=[*([owner] if owner else []), *(member.decode().rpartition(SEPARATOR)[2] for member in holders)],
        conflict=_words(str(record[4])),
    )


def _declared(text: str) -> tuple[int | None, str, int, str]:
    limit, rate, burst, kind = (*text.split(SEPARATOR), "", "", "", "")[:4]
    per_second = f"{float(rate) * 1000:g}/s" if rate else ""
    return int(limit) if limit else None, per_second, int(burst or 0), kind


def _words(text: str) -> str:
    if not text:
        return ""
    limit, rate, burst, kind = _declared(text)
    parts = [f"limit {limit}" if limit is not None else "", f"rate {rate}, burst {burst}" if rate else "", kind]
    return ", ".join(part for part in parts if part) or "no limit"
