"""Connections that are read without a detour: what arrives is passed on in the same step.

redis-py makes them, for it knows about addresses, TLS and passwords. From then on the loop calls us, and not a stream
that wakes a task that asks a parser: for the many small answers of a job queue that was a third of the work. Blocking
code reads its sockets the same way.
"""

import asyncio
import math
import os
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import hiredis
from redis import exceptions as redis_errors
from redis._parsers.base import BaseParser

_NOTHING: Final = object()
_FRESH: Final = 0.05  #: seconds after a trip
_FIRST: Final = 2**40  #: from here on trips are numbered, so that no script answers with such a number
_CHUNK: Final = 65_536  #: bytes read at once
SLOW: Final = 0.25  #: seconds after which an answer is late: others take another connection
LATE: Final = 1.0  #: seconds after which its server may not be the right one any more: that is found out meanwhile
DEAD: Final = 10.0  #: seconds after which it will not come any more


def out_of_step() -> redis_errors.ConnectionError:
    return redis_errors.ConnectionError("its answers do not pair with its commands: the connection was closed")


def _ending(number: int) -> tuple[bytes, bytes]:
    """What ends a trip: a ping with a number, and its answer.

    If that answer is not the last one, another is missing, or there is one too many. It costs no round trip.
    """
    text = b"%d" % number
    return b"*2\r\n$4\r\nPING\r\n$%d\r\n%b\r\n" % (len(text), text), text


class Connection(asyncio.Protocol):
    """One connection: each answer is given to `received`, in order; why there are no more of them to `ended`, once."""

    def __init__(self, connection: Any) -> None:
        self._writer = connection._writer  # noqa: SLF001 - to be kept: its end would close the transport
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._parser = _parser()
        self._transport: asyncio.Transport = self._writer.transport
        self._transport.set_protocol(self)
        encrypted = self._transport.get_extra_info("ssl_object") is not None
        self._file: int = -1 if encrypted else self._transport.get_extra_info("socket").fileno()
        connection._reader = connection._writer = None  # noqa: SLF001 - it is ours now

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._transport.is_closing()

    @property
    def is_dead(self) -> bool:
        """Whether something is awaited that will not come any more."""
        return False

    def retire(self) -> None:
        """Close it as soon as nobody needs it; who only listens goes on until it ends."""

    def received(self, answer: Any) -> None:
        """An answer came."""

    def ended(self, error: Exception) -> None:
        """Nothing will come any more."""

    def send(self, data: bytes) -> None:
        """Send at once what the socket takes.

        uvloop would wait for the end of its turn: whatever runs until then could have run beside the server.
        """
        if self._file >= 0 and not self._transport.is_closing() and not self._transport.get_write_buffer_size():
            with suppress(OSError):  # there is no room, or the transport will find out why
                sent = os.write(self._file, data)
                if sent == len(data):
                    return
                data = data[sent:]
        self._transport.write(data)

    def close(self, error: Exception | None = None) -> None:
        """At once: a TLS connection that waits for the server's goodbye may outlive its loop."""
        self._transport.abort()
        self._end(error or redis_errors.ConnectionError("the connection was closed"))

    def abandon(self) -> None:
        """Its loop was closed, so that nothing can close it properly."""
        self._is_open = False

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            self._parser.feed(data)
            while (answer := self._parser.gets()) is not _NOTHING:
                self.received(answer)
        except Exception as error:  # noqa: BLE001 - what cannot be dealt with ends the connection, not the program
            self.close(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        self._end(redis_errors.ConnectionError(f"the connection was lost: {error or 'the server closed it'}"))

    def _end(self, error: Exception) -> None:
        if self._is_open:
            self._is_open = False
            self.ended(error)


class SharedConnection(Connection):
    """A connection for any number of trips at once: commands go out, and answers come back, in their order."""

    on_late: Callable[[], None] | None = None  #: called every second while an answer is late

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._is_full = False  #: there is more to send than the server takes
        self._turns: deque[asyncio.Future[None]] = deque()  #: of those who wait until it is not, in their order
        self._trips: deque[_Roundtrip] = deque()
        self._posted = _FIRST
        self._retired = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    @property
    def is_good(self) -> bool:
        """Whether it takes another trip: not while an answer is late, which may be the connection's fault."""
        return self.is_open and not self._retired and self._wait() <= SLOW

    @property
    def is_dead(self) -> bool:
        return self._wait() > DEAD

    @property
    def is_crowded(self) -> bool:
        """Whether who wants to send should wait for a turn."""
        return self._is_full or bool(self._turns)

    async def wait_for_turn(self) -> None:
        """Until what was sent before is on its way, or the connection has ended; then the next has a turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._turns.append(turn)
        try:
            await turn
        finally:
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        while self._turns and not self._is_full:
            turn = self._turns.popleft()
            if not turn.done():  # who waited may be gone
                turn.set_result(None)
                return

    def post(self, data: bytes, count: int, within: float | None = None) -> "asyncio.Future[list[Any]]":
        """Commands out, and so many answers back, errors among them; TimeoutError if not within so many seconds."""
        if not self.is_open:
            raise redis_errors.ConnectionError("the connection was closed")
        self._posted += 1
        ending, last = _ending(self._posted)
        trip = _Roundtrip(self._loop, count, within, last)
        self._trips.append(trip)
        due = min(trip.until, trip.since + LATE)
        if due < self._alarm_at:
            self._set_alarm(due)
        self.send(data + ending)
        return trip.answers

    def _check_late(self) -> None:
        """One timer for all: those whose time is over wait no more, though their answers may still come.

        While the first answer is late, whoever made this connection looks for the right server.
        """
        now, following = self._loop.time(), math.inf
        for trip in self._trips:
            if trip.answers.done():
                continue
            if trip.until <= now:
                trip.answers.set_exception(TimeoutError("no answer in time"))
            else:
                following = min(following, trip.until)
        if self._trips:
            is_late = self._wait() >= LATE
            following = min(following, now + LATE if is_late else self._trips[0].since + LATE)
            if is_late and self.on_late is not None:
                self.on_late()
        self._set_alarm(following)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_at(at, self._check_late) if at < math.inf else None

    def retire(self, *, after_use: bool = False) -> None:
        """Close it as soon as nobody waits for an answer: now, or when it has been used."""
        self._retired = True
        if not self._trips and not after_use:
            self.close()

    def received(self, answer: Any) -> None:
        if not self._trips:
            raise out_of_step()
        trip = self._trips[0]
        if not _is_in_step(answer, trip.last, is_last=len(trip.found) == trip.count):
            raise out_of_step()
        if len(trip.found) < trip.count:
            trip.found.append(answer)
            return
        self._trips.popleft()
        if not trip.answers.done():  # who waited may be gone
            trip.answers.set_result(trip.found)
        if self._retired and not self._trips:
            self.close()

    def pause_writing(self) -> None:
        """Called by the loop: there is more to send than the server takes."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._is_full = False
        self._next_turn()

    def ended(self, error: Exception) -> None:
        self.resume_writing()  # who waits finds that it is closed
        self._set_alarm(math.inf)
        for trip in self._trips:
            if not trip.answers.done():
                trip.answers.set_exception(redis_errors.ConnectionError(str(error)))
        self._trips.clear()

    def _wait(self) -> float:
        """Seconds that the first of those who wait has waited."""
        return self._loop.time() - self._trips[0].since if self._trips else 0.0


class _Roundtrip:
    __slots__ = ("answers", "count", "found", "last", "since", "until")

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int, within: float | None, last: bytes) -> None:
        self.answers: asyncio.Future[list[Any]] = loop.create_future()
        self.count = count
        self.last = last  #: the answer to the ping behind its commands
        self.found: list[Any] = []
        self.since = loop.time()
        self.until = math.inf if within is None else self.since + within


def _is_in_step(answer: Any, last: bytes, *, is_last: bool) -> bool:
    """Whether an answer may be the one that is due. A server that refuses everything refuses a ping, too."""
    if is_last:
        return answer == last or isinstance(answer, redis_errors.ResponseError | redis_errors.ConnectionError)
    return bool(answer != last)


class SyncConnection:
    """The same for blocking code, one trip at a time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # kept: its end would close the socket
        self._socket: Any = connection._sock  # noqa: SLF001 - from here on it is ours
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._parser = _parser()
        self._used = -math.inf
        self._trips = _FIRST
        self._is_tls = isinstance(self._socket, ssl.SSLSocket)
        self._timeout: float | None = self._socket.gettimeout()
        if not self._is_tls:
            _have_kernel_wait(self._socket)

    def is_spent(self) -> bool:
        """It was closed from the other side, or holds an answer that nobody waits for.

        One that was in use a moment ago is not asked: if it has been closed since, the trip tells.
        """
        if time.monotonic() - self._used < _FRESH:
            return False
        arrived = bool(self._poll.poll(0))
        return _is_spent_tls(self._socket) if arrived and isinstance(self._socket, ssl.SSLSocket) else arrived

    def trip(
        self, data: bytes, count: int, within: float = math.inf, is_right: Callable[[], bool] | None = None
    ) -> list[Any]:
        """Commands out, and so many answers back, errors among them; TimeoutError if not within so many seconds.

        `is_right` is asked every second while no answer comes: whether this still is the server to ask.
        """
        until = time.monotonic() + within
        found: list[Any] = []
        self._trips += 1
        ending, last = _ending(self._trips)
        try:
            self._send(data + ending)
            while len(found) <= count:
                arrived = self._receive(until, is_right)
                if not arrived:
                    raise redis_errors.ConnectionError("the server closed the connection")
                self._parser.feed(arrived)
                while (answer := self._parser.gets()) is not _NOTHING:
                    if not _is_in_step(answer, last, is_last=len(found) == count):
                        raise out_of_step()
                    found.append(answer)
        except (TimeoutError, BlockingIOError) as error:
            raise redis_errors.TimeoutError("no answer in time") from error
        self._used = time.monotonic()
        return found[:count]

    def _send(self, data: bytes) -> None:
        if self._is_tls:
            self._socket.settimeout(self._timeout)
        self._socket.sendall(data)

    def _receive(self, until: float, is_right: Callable[[], bool] | None) -> bytes:
        """What arrives next."""
        if self._is_tls:
            self._socket.settimeout(LATE)
        while True:
            try:
                if until - time.monotonic() < LATE:  # the socket would wait for longer
                    self._wait_until(until)
                arrived: bytes = self._socket.recv(_CHUNK)
            except (TimeoutError, BlockingIOError):
                if time.monotonic() >= until or is_right is None or not is_right():
                    raise
            else:
                return arrived

    def _wait_until(self, until: float) -> None:
        """Until something arrives; TimeoutError if nothing has."""
        if self._is_tls and self._socket.pending():
            return  # it has arrived before, and was not read yet
        if not self._poll.poll(max(until - time.monotonic(), 0) * 1000):
            raise TimeoutError

    def close(self) -> None:
        self._connection.disconnect()


def _have_kernel_wait(plain: socket.socket) -> None:
    """Leave time-outs to the kernel: Python would ask it before each send and each recv whether it is time for that."""
    if timeout := plain.gettimeout():
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(min(timeout, LATE)))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
        plain.settimeout(None)


def _timeval(seconds: float) -> bytes:
    microseconds = max(round(seconds * 1_000_000), 1)  # none at all would be for ever
    return struct.pack("@ll", *divmod(microseconds, 1_000_000))


def _is_spent_tls(connection: ssl.SSLSocket) -> bool:
    """What can be read of such a connection need not be an answer: the server also sends keys for later."""
    timeout = connection.gettimeout()
    connection.settimeout(0)
    try:
        connection.recv(1)
    except (ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(timeout)
    return True


def _parser() -> Any:
    return hiredis.Reader(
        protocolError=redis_errors.InvalidResponse, replyError=BaseParser.parse_error, notEnoughData=_NOTHING
    )
