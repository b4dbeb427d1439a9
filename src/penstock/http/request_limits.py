"""How many requests are answered at once: of one sender, and of all who are no admins, so that admins always get in."""

from collections import Counter
from types import TracebackType
from typing import Final, Self

from penstock.http.principal import Principal
from penstock.http.problems import Refused

MAX_OF_ONE: Final = 200  #: requests of one sender, most of which wait for the end of a job
MAX_OF_OTHERS: Final = 500  #: requests of all senders but admins
MAX_READERS: Final = 100  #: of events: each has a connection to the server
MAX_READERS_OF_ONE: Final = 20
MAX_READERS_OF_OTHERS: Final = 80  #: of all but admins
_RETRY_AFTER: Final = {"Retry-After": "1"}


class RequestLimits:
    """Counts requests while they are answered."""

    def __init__(self, of_one: int, of_others: int, of_all: int | None = None) -> None:
        self._of_one, self._of_others, self._of_all = of_one, of_others, of_all
        self._by_name: Counter[str] = Counter()
        self._others = 0

    def enter(self, principal: Principal) -> "Place":
        """Take a place until `leave`; 429 or 503 if there is none."""
        if self._by_name[principal.name] >= self._of_one:
            text = f"{principal.name} has {self._of_one} requests like this in progress: wait for one of them"
            raise Refused("busy", text, 429, _RETRY_AFTER)
        is_full = self._of_all is not None and self._by_name.total() >= self._of_all
        if is_full or (principal.role != "admin" and self._others >= self._of_others):
            raise Refused("busy", "too many requests like this are in progress", 503, _RETRY_AFTER)
        return Place(self, principal)

    def add(self, principal: Principal, number: int) -> None:
        self._by_name[principal.name] += number
        self._others += number * (principal.role != "admin")
        if not self._by_name[principal.name]:
            del self._by_name[principal.name]


class Place:
    """The place of one request, inside a `with` block."""

    def __init__(self, limits: RequestLimits, principal: Principal) -> None:
        self._limits, self._principal = limits, principal

    def __enter__(self) -> Self:
        self._limits.add(self._principal, 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.add(self._principal, -1)
