"""The connections of `penstock serve`, in groups with bounds of their own, so that nobody can take the service.

A connection is a stranger's until a request on it proves who sent it. There is room for a number of strangers; one more
takes the place of the stranger who came first, so that probes, and whoever has credentials, always get in. The others
have places that no stranger can take, and admins have places that nobody else can take.
"""

import asyncio
import resource
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.http.principal import Principal
from penstock.http.service import CONNECTION

HEAD_TIMEOUT: Final = 10  #: seconds in which the head of a request has to come
KEEP_ALIVE: Final = 30  #: seconds that a connection without a request is kept
STRANGER_TIMEOUT: Final = 5  #: both, for a stranger
_OTHER_FILES: Final = 200  #: open files that are not connections of clients


@dataclass(frozen=True, slots=True)
class Room:
    """How many connections each group may have."""

    strangers: int = 300
    strangers_of_one_address: int = 100
    others: int = 500  #: of those with credentials who are no admins
    admins: int = 500
    of_one: int = 250  #: of one of these

    def within(self, files: int) -> "Room":
        """The same in proportion, if the system allows the process no more open files than that."""
        total = self.strangers + self.others + self.admins
        share = min(1.0, max(files - _OTHER_FILES, 30) / total)
        names = ("strangers", "strangers_of_one_address", "others", "admins", "of_one")
        return Room(*(max(2, int(getattr(self, name) * share)) for name in names))


def room_of_process() -> Room:
    """The room that this process has, after it has been allowed as many open files as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = Room().strangers + Room().others + Room().admins + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS may allow fewer than it says
            more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    return Room() if soft == resource.RLIM_INFINITY else Room().within(soft)


class Connections:
    """All connections of one service, by group, those that came first at the front."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._groups: dict[str, dict[ServiceProtocol, None]] = {}

    def enter(self, connection: "ServiceProtocol", address: str) -> None:
        """A new one. If there are too many strangers, the first of them has to go."""
        bounds = {"strangers": self._room.strangers, f"at {address}": self._room.strangers_of_one_address}
        for group, bound in bounds.items():
            if len(self._groups.get(group, ())) >= bound:
                next(iter(self._groups[group])).abort()
        self._join(connection, bounds)

    def move(self, connection: "ServiceProtocol", principal: Principal) -> None:
        """One that turns out to be this principal's. If that makes too many, one that nobody uses has to go."""
        group, bound = ("admins", self._room.admins) if principal.role == "admin" else ("others", self._room.others)
        bounds = {group: bound, f"of {principal.name}": self._room.of_one}
        if connection.groups == tuple(bounds):
            return
        self.leave(connection)
        self._join(connection, bounds)
        for name, most in bounds.items():
            if len(self._groups[name]) > most:
                next((one for one in self._groups[name] if one.is_idle), connection).end()

    def leave(self, connection: "ServiceProtocol") -> None:
        for name in connection.groups:
            self._groups[name].pop(connection, None)
            if not self._groups[name]:
                del self._groups[name]
        connection.groups = ()

    def _join(self, connection: "ServiceProtocol", bounds: dict[str, int]) -> None:
        for name in bounds:
            self._groups.setdefault(name, {})[connection] = None
        connection.groups = tuple(bounds)


class ServiceProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn with these bounds, and with a time in which a head has to come: uvicorn waits for ever."""

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups: tuple[str, ...] = ()
        self._all = connections
        self._service = self.app
        self.app = self._serve
        self._timer: asyncio.TimerHandle | None = None
        self._head_timeout = self.timeout_keep_alive = STRANGER_TIMEOUT

    def belongs_to(self, principal: Principal) -> None:
        self._head_timeout, self.timeout_keep_alive = HEAD_TIMEOUT, KEEP_ALIVE
        if not self.transport.is_closing():
            self._all.move(self, principal)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        """Close it, after the response if there is one on its way."""
        if self.is_idle:
            self.abort()
        else:
            self.cycle.keep_alive = False

    def abort(self) -> None:
        """Close it now, without waiting until the client has read what was sent."""
        self._all.leave(self)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets an answer like all others, and its connection is closed."""
        if self.is_idle:
            head = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
            head += f"X-Content-Type-Options: nosniff\r\nContent-Length: {len(msg.encode())}\r\n\r\n"
            self.transport.write(f"{head}{msg}".encode())
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._all.enter(self, self.client[0] if self.client else "")
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._timer is None and self.is_idle:
            self._start_timer()  # the next request on a connection that is kept alive
        super().data_received(data)
        if not self.is_idle:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._all.leave(self)
        super().connection_lost(exc)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[CONNECTION] = self
        await self._service(scope, receive, send)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._head_timeout, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
