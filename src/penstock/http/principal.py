"""Who sends requests and what they may do: a role, the rights beside it, and the queues, tasks and options to use."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from penstock.errors import BadOption
from penstock.model.durations import Duration, milliseconds
from penstock.model.options import unknown

#: viewer, operator and admin are a ladder: each may do what those before it may. An enqueuer stores jobs and batches,
#: and reads a job by its id; it is not on the ladder.
Role = Literal["viewer", "enqueuer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
_LADDER: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")
_ALL: Final = ("*",)  #: always this very tuple


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request, and what they may do."""

    name: str
    role: Role
    contents: bool | None = None  #: may read arguments, results, errors and logs; None: if operator or admin
    limits: bool | None = None  #: may set limits and rates with a job, and leave the code's lanes; None: if admin
    queues: Sequence[str] = _ALL  #: to use and to see; `*` in a name stands for anything: `mail.*`
    tasks: Sequence[str] = _ALL
    most_urgent: int = 0  #: the lowest number that may be given as a priority
    max_retries: int | None = None  #: the largest number that may be given as retries
    max_timeout: Duration | None = None  #: the longest timeout that may be given

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise BadOption(f"a principal's name={self.name!r}: use printable characters")
        check_role(self.role)
        for what in ("contents", "limits"):
            if not isinstance(getattr(self, what), bool | None):
                raise BadOption(f"{self.name}: {what}={getattr(self, what)!r}: use true, false or nothing")
        for what in ("queues", "tasks"):
            object.__setattr__(self, what, _patterns(getattr(self, what), f"{self.name}: {what}"))
        _check_number(self.most_urgent, f"{self.name}: most_urgent", 99)
        if self.max_retries is not None:
            _check_number(self.max_retries, f"{self.name}: max_retries", 10_000)
        if self.max_timeout is not None:
            milliseconds(self.max_timeout, f"{self.name}: max_timeout")

    def has_role(self, role: Role) -> bool:
        """Whether it may do what this role of the ladder may."""
        return self.role in _LADDER and _LADDER.index(self.role) >= _LADDER.index(role)

    @property
    def reads_contents(self) -> bool:
        return self.has_role("operator") if self.contents is None else self.contents

    @property
    def sets_limits(self) -> bool:
        return self.has_role("admin") if self.limits is None else self.limits

    @property
    def uses_all_queues(self) -> bool:
        return self.queues is _ALL

    @property
    def uses_all_tasks(self) -> bool:
        return self.tasks is _ALL

    @property
    def sees_whole_app(self) -> bool:
        """Whether it is bound to no queue and no task."""
        return self.uses_all_queues and self.uses_all_tasks

    @property
    def is_unbound(self) -> bool:
        """Whether it is bound to no option, either."""
        options = self.most_urgent, self.max_retries, self.max_timeout
        return self.sees_whole_app and options == (0, None, None)

    def uses_queue(self, name: str) -> bool:
        return _matches(name, self.queues)

    def uses_task(self, name: str) -> bool:
        return _matches(name, self.tasks)

    def uses(self, queue: str, task: str) -> bool:
        """Whether jobs of this task in this queue are among those that it may use."""
        return self.uses_queue(queue) and self.uses_task(task)

    @property
    def scope(self) -> str:
        """What it is bound to, in words."""
        parts = [f"{what} {', '.join(names)}" for what, names in self._bounds() if names != _ALL]
        return " and ".join(parts) or "all queues and tasks"

    def _bounds(self) -> tuple[tuple[str, Sequence[str]], ...]:
        return ("the queues", self.queues), ("the tasks", self.tasks)


def check_role(role: Any) -> Role:
    if role not in ROLES:
        raise BadOption(unknown("role", str(role), ROLES))
    checked: Role = role
    return checked


def _patterns(value: Any, what: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise BadOption(f'{what}={value!r}: use a list of names, such as ["mail.*"]; leave it out for all')
    for name in value:
        if not isinstance(name, str) or not name:
            raise BadOption(f"{what}: {name!r} is no name")
    return _ALL if "*" in value else tuple(value)


def _check_number(value: Any, what: str, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise BadOption(f"{what}={value!r}: use a number from 0 to {most:,}")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return patterns is _ALL or any(_regex(pattern).fullmatch(name) for pattern in patterns)


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> "re.Pattern[str]":
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
