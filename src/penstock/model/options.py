"""The options of tasks and jobs, each with its check."""

import difflib
import random
import re
import string
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, get_args

from penstock.errors import BadOption
from penstock.model.backoff import Backoff, Delays, backoff
from penstock.model.durations import Duration, instant, milliseconds
from penstock.model.lanes import MAX_LANES, Lane, check_cost, several_lanes, several_locks
from penstock.model.printable import CONTROLS, NOT_PRINTABLE

Executor = Literal["async", "thread", "process"]
Failures = type[BaseException] | Sequence[type[BaseException]]

_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,128}\Z")
_TASK = re.compile(rf"[^\s{CONTROLS}{{}}*]{{1,200}}\Z")
_FREE = re.compile(rf"[^{CONTROLS}]{{1,256}}\Z")
_ID = re.compile(rf"[^\s{CONTROLS}{{}}]{{1,128}}\Z")


class Options(TypedDict, total=False):
    """What `@app.task(...)` and `.using(...)` take."""

    queue: str
    priority: int
    delay: Duration
    at: datetime
    expires: Duration
    retries: int
    backoff: Backoff | Delays | Sequence[Duration]
    retry_on: Failures
    give_up_on: Failures
    timeout: Duration | None
    lock: str | Sequence[str]
    lane: Lane | Sequence[Lane]
    cost: int
    unique: str | bool
    id: str
    tags: Sequence[str]
    keep_result: Duration
    executor: Executor
    redact: Sequence[str]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Checked options; times in ms."""

    queue: str = "default"
    priority: int = 50
    delay: int = 0
    at: int = 0
    expires: int = 0
    retries: int = 3
    backoff: Backoff | Delays = Backoff()  # noqa: RUF009  (frozen)
    retry_on: tuple[str, ...] | None = None  #: names of exceptions; None: all
    give_up_on: tuple[str, ...] = ()
    timeout: int = 0  #: 0: none
    lock: tuple[str, ...] = ()
    lane: tuple[Lane, ...] = ()
    cost: int = 1
    unique: str | bool = False
    id: str = ""
    tags: tuple[str, ...] = ()
    keep_result: int = 3_600_000
    executor: Executor | None = None  #: None: by the function's kind
    redact: tuple[str, ...] = ()

    def having(self, options: Mapping[str, Any]) -> "TaskOptions":
        """A copy with some options changed; BadOption for an unknown name or a bad value names the valid ones."""
        checked = {}
        for name, value in options.items():
            if (check := _CHECKS.get(name)) is None:
                raise BadOption(_unknown_option(name))
            checked[name] = check(value)
        if "delay" in checked and "at" in checked:
            raise BadOption("delay and at are two ways to say the same: use one of them")
        if "delay" in checked:
            checked["at"] = 0
        elif "at" in checked:
            checked["delay"] = 0
        changed = replace(self, **checked)
        changed.check_lanes()
        return changed

    def check_lanes(self) -> None:
        """Check the options about lanes together."""
        if len(self.lock) + len(self.lane) > MAX_LANES:
            raise BadOption(
                f"lock and lane: {len(self.lock) + len(self.lane)} are too many, a job has at most {MAX_LANES}"
            )
        for lane in self.lane:
            if lane.burst is not None and lane.burst < self.cost:
                raise BadOption(f"cost={self.cost}: lane {lane.name!r} never has more than its burst of {lane.burst}")


#: Name in other libraries, or a likely guess → our name, if that is a valid option.
_NAMES_ELSEWHERE: Final = {
    "retry": "retries",
    "max_retries": "retries",
    "max_tries": "retries",
    "countdown": "delay",
    "defer_by": "delay",
    "eta": "at",
    "defer_until": "at",
    "time_limit": "timeout",
    "job_timeout": "timeout",
    "result_ttl": "keep_result",
    "ttl": "expires",
    "queue_name": "queue",
    "job_id": "id",
    "task_id": "id",
    "key": "lock",
    "done": "complete",
    "success": "complete",
    "start": "lease",
    "failed": "bury",
    "dead": "bury",
}


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """The error text for an unknown name: a guess and all valid names."""
    names = sorted(valid)
    return f"unknown {what} {name[:60]!r};{guess(name, names)} valid are {', '.join(names)}"


def guess(name: str, valid: Iterable[str]) -> str:
    """The question whether another name was meant, after a blank; empty if no name is similar."""
    names = sorted(valid)
    short = {full.rpartition(":")[2]: full for full in names}  # most people leave out the module of a task's name
    close = [short.get(match, match) for match in difflib.get_close_matches(name, [*names, *short], n=1)]
    if _NAMES_ELSEWHERE.get(name) in names:
        close = [_NAMES_ELSEWHERE[name]]
    return f" did you mean {close[0]!r}?" if close else ""


def meant(name: str, known: Collection[str]) -> list[str]:
    """The names that a short one may stand for: itself if it is known, else each with it after its last colon."""
    return [name] if name in known else [full for full in known if full.rpartition(":")[2] == name]


def _unknown_option(name: str) -> str:
    """The error text for an unknown option. `name` is an option of `@app.task` only."""
    if name == "name":
        return "unknown option 'name': a task has one name, which only @app.task(name=…) gives it"
    hint = guess(name, [*_CHECKS, "name"])
    return f"unknown option {name[:60]!r};{hint} valid are {', '.join(sorted(_CHECKS))}; and for @app.task name"


def queue_name(value: object) -> str:
    if isinstance(value, str) and re.search(r":\d+\Z", value):
        raise BadOption(f"queue={_short(value)}: what follows the last colon reads as a weight; use . or - there")
    if not isinstance(value, str) or not _NAME.match(value):
        raise BadOption(f"queue={_short(value)}: use 1 to 128 letters, digits and . _ : / -")
    return value


class Queues:
    """`mail,default` is strict: the first queue first. `mail:5,default:1` is weighted: mail is first 5 times in 6."""

    def __init__(self, names: Sequence[str]) -> None:
        if (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(isinstance(name, str) for name in names)
        ):
            raise BadOption(f"queues={_short(names)}: use a list of names, or * for all")
        parsed = [_weighted(name.strip()) for name in names]
        if not parsed:
            raise BadOption("queues: name at least one, or * for all")
        self.names = [name for name, _ in parsed]
        self._weights = {name: weight for name, weight in parsed if weight}
        if self._weights and len(self._weights) != len(parsed):
            raise BadOption(f"queues={','.join(names)}: give all of them a weight, or none")
        if "*" in self.names and len(self.names) > 1:
            raise BadOption("queues: * means all queues and stands alone")
        if len(set(self.names)) != len(self.names):
            raise BadOption(f"queues={','.join(names)}: a queue is named twice")

    def order(self) -> list[str]:
        """The order for one lease call: as written, or drawn by weight so that every queue has its turn."""
        if not self._weights:
            return self.names
        # Exponential keys: sorting by them draws without replacement, each queue with its weight.
        return sorted(self.names, key=lambda name: random.expovariate(self._weights[name]))


def _weighted(text: str) -> tuple[str, int]:
    name, colon, weight = text.rpartition(":")
    if colon and weight.isdigit():
        if int(weight) < 1:
            raise BadOption(f"queue {text!r}: a weight is a number above 0")
        return queue_name(name), int(weight)
    return (text, 0) if text == "*" else (queue_name(text), 0)


def task_name(value: object) -> str:
    if not isinstance(value, str) or not _TASK.match(value):
        raise BadOption(f"name={_short(value)}: use up to 200 characters without spaces, braces, * and {NOT_PRINTABLE}")
    return value


def job_id(value: object) -> str:
    if not isinstance(value, str) or not _ID.match(value):
        raise BadOption(f"id={_short(value)}: use up to 128 characters without spaces, braces and {NOT_PRINTABLE}")
    return value


def template_fields(template: str) -> set[str]:
    """The arguments that a template such as `account:{account}` names."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise BadOption(f"template {_short(template)}: {error}") from None
    return {re.split(r"[.\[]", field, maxsplit=1)[0] for _, field, _, _ in parsed if field is not None}


def free_text(value: object, what: str) -> str:
    """A key that users choose freely: printable, not empty, not long."""
    if not isinstance(value, str) or not _FREE.match(value):
        raise BadOption(f"{what}={_short(value)}: use 1 to 256 printable characters, no {NOT_PRINTABLE}")
    return value


def priority_of(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 99:
        raise BadOption(f"priority={_short(value)}: use 0 (first) to 99 (last)")
    return value


def _retries(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10_000:
        raise BadOption(f"retries={_short(value)}: use a number from 0 to 10,000")
    return value


def _timeout(value: Any) -> int:
    if value is None:
        return 0
    timeout = milliseconds(value, "timeout")
    if timeout == 0:
        raise BadOption(f"timeout={value!r}: use a time above 0, or None for no limit")
    return timeout


def _unique(value: object) -> str | bool:
    return value if isinstance(value, bool) else free_text(value, "unique")


def _texts(what: str, limit: int) -> Callable[[Any], tuple[str, ...]]:
    def check(value: Any) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise BadOption(f"{what}={_short(value)}: use a list of texts")
        texts = tuple(free_text(text, what) for text in value)
        if len(texts) > limit:
            raise BadOption(f"{what}: {len(texts)} are too many, {limit} is the limit")
        return texts

    return check


def _executor(value: object) -> Executor:
    if value not in get_args(Executor):
        raise BadOption(f"executor={_short(value)}: use one of {', '.join(map(repr, get_args(Executor)))}")
    return value  # type: ignore[return-value]


def _failures(what: str) -> Callable[[Any], tuple[str, ...]]:
    def check(value: Any) -> tuple[str, ...]:
        kinds = (value,) if isinstance(value, type) else tuple(value) if isinstance(value, Sequence) else (value,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise BadOption(f"{what}={_short(value)}: use an exception class or several")
        return tuple(exception_name(kind) for kind in kinds)

    return check


def exception_name(kind: type[BaseException]) -> str:
    """How an exception class is named across processes."""
    return f"{module_name(kind.__module__)}:{kind.__qualname__}"


def module_name(module: str) -> str:
    """A module's name, the same whether it runs as a program or is imported."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name.removesuffix(".__main__"))
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else module


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": queue_name,
    "priority": priority_of,
    "delay": lambda value: milliseconds(value, "delay"),
    "at": instant,
    "expires": lambda value: milliseconds(value, "expires"),
    "retries": _retries,
    "backoff": backoff,
    "retry_on": _failures("retry_on"),
    "give_up_on": _failures("give_up_on"),
    "timeout": _timeout,
    "lock": several_locks,
    "lane": several_lanes,
    "cost": check_cost,
    "unique": _unique,
    "id": job_id,
    "tags": _texts("tags", 20),
    "keep_result": lambda value: milliseconds(value, "keep_result"),
    "executor": _executor,
    "redact": _texts("redact", 50),
}
assert set(_CHECKS) == {field.name for field in fields(TaskOptions)} == set(Options.__annotations__)
