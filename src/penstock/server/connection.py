"""Connections whose answers are passed on in the same step in which they arrive.

redis-py opens the connections. From then on the event loop calls us directly, instead of a stream that wakes a task
that asks a parser: for the many small answers of a job queue that detour was a third of the work. Blocking code reads
its sockets in the same way.
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
from typing import Any, Final, cast

import hiredis
from redis import exceptions as redis_errors

from penstock.server.redis_internals import detach_stream, parse_error, socket_of

SLOW_SECONDS: Final = 0.25  #: after this long an answer is slow: others take another connection
LATE_SECONDS: Final = 1.0  #: after this long the server may have been replaced: that is checked meanwhile
DEAD_SECONDS: Final = 10.0  #: after this long the answer will not come any more
_FRESH_SECONDS: Final = 0.05  #: for so long after a round trip a connection counts as open
_READ_BYTES: Final = 65_536
_FIRST_NUMBER: Final = 2**40  #: round trips are numbered from here on, so that no script answers with such a number
_INCOMPLETE: Final = object()  #: from the parser: there is no whole answer yet


def out_of_step() -> redis_errors.ConnectionError:
    return redis_errors.ConnectionError("its answers do not pair with its commands: the connection was closed")


def _end_marker(number: int) -> tuple[bytes, bytes]:
    """The ping with a number that ends a round trip, and its answer.

    If that answer is not the last one, an answer is missing or there is one too many. It costs no round trip.
    """
    text = b"%d" % number
    return b"*2\r\n$4\r\nPING\r\n$%d\r\n%b\r\n" % (len(text), text), text


class Connection(asyncio.Protocol):
    """One connection: calls `answered` with each answer, in order, and `closed` once with the reason for its end."""

    def __init__(self, connection: Any) -> None:
        writer = detach_stream(connection)
        assert writer is not None
        self._writer = writer  # kept, because its deletion would close the transport
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._parser = _parser()
        self._transport = cast("asyncio.Transport", writer.transport)
        self._transport.set_protocol(self)
        encrypted = self._transport.get_extra_info("ssl_object") is not None
        self._file: int = -1 if encrypted else self._transport.get_extra_info("socket").fileno()

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._transport.is_closing()

    @property
    def is_dead(self) -> bool:
        """Whether it waits for an answer that will not come any more."""
        return False

    def retire(self) -> None:
        """Close it as soon as nobody needs it; a subscription goes on until it ends."""

    def answered(self, answer: Any) -> None:
        """An answer came."""

    def closed(self, error: Exception) -> None:
        """No more answers will come."""

    def send(self, data: bytes) -> None:
        """Send at once as much as the socket takes.

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
        """Close it at once: a TLS connection that waits for the server's goodbye may outlive its loop."""
        self._transport.abort()
        self._end(error or redis_errors.ConnectionError("the connection was closed"))

    def abandon(self) -> None:
        """Mark it as closed after its loop was closed, when nothing can close it properly."""
        self._is_open = False

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            self._parser.feed(data)
            while (answer := self._parser.gets()) is not _INCOMPLETE:
                self.answered(answer)
        except Exception as error:  # noqa: BLE001 - what cannot be handled ends the connection, not the program
            self.close(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        self._end(redis_errors.ConnectionError(f"the connection was lost: {error or 'the server closed it'}"))

    def _end(self, error: Exception) -> None:
        if self._is_open:
            self._is_open = False
            self.closed(error)


class SharedConnection(Connection):
    """A connection for any number of round trips at once: commands go out, and answers come back, in order."""

    on_late: Callable[[], None] | None = None  #: called every second while an answer is late

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._is_full = False  #: the server takes no more at the moment
        self._turns: deque[asyncio.Future[None]] = deque()  #: one for each caller that waits until it does, in order
        self._in_flight: deque[_Roundtrip] = deque()
        self._last_number = _FIRST_NUMBER
        self._is_retired = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    @property
    def is_good(self) -> bool:
        """Whether it takes another round trip: not while an answer is slow, which may be the connection's fault."""
        return self.is_open and not self._is_retired and self._waited() <= SLOW_SECONDS

    @property
    def is_dead(self) -> bool:
        return self._waited() > DEAD_SECONDS

    @property
    def is_crowded(self) -> bool:
        """Whether senders have to wait for a turn."""
        return self._is_full or bool(self._turns)

    async def wait_for_turn(self) -> None:
        """Wait until everything before is on its way, or the connection has ended; then the next sender has a turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._turns.append(turn)
        try:
            await turn
        finally:
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        while self._turns and not self._is_full:
            turn = self._turns.popleft()
            if not turn.done():  # its waiter may have been cancelled
                turn.set_result(None)
                return

    def roundtrip(self, commands: bytes, count: int, timeout: float | None = None) -> "asyncio.Future[list[Any]]":
        """Send so many commands; the future has their answers, errors among them, or TimeoutError."""
        if not self.is_open:
            raise redis_errors.ConnectionError("the connection was closed")
        self._last_number += 1
        end_marker, last = _end_marker(self._last_number)
        trip = _Roundtrip(self._loop, count, timeout, last)
        self._in_flight.append(trip)
        due = min(trip.deadline, trip.started + LATE_SECONDS)
        if due < self._alarm_at:
            self._set_alarm(due)
        self.send(commands + end_marker)
        return trip.future

    def _check_late(self) -> None:
        """Time out the round trips whose deadline is over, and report a late answer; one timer serves all.

        The answers of a round trip that timed out may still come, and then are dropped.
        """
        now, following = self._loop.time(), math.inf
        for trip in self._in_flight:
            if trip.future.done():
                continue
            if trip.deadline <= now:
                trip.future.set_exception(TimeoutError("no answer in time"))
            else:
                following = min(following, trip.deadline)
        if self._in_flight:
            is_late = self._waited() >= LATE_SECONDS
            following = min(following, now + LATE_SECONDS if is_late else self._in_flight[0].started + LATE_SECONDS)
            if is_late and self.on_late is not None:
                self.on_late()
        self._set_alarm(following)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_at(at, self._check_late) if at < math.inf else None

    def retire(self, *, after_use: bool = False) -> None:
        """Close it as soon as nobody waits for an answer: now, or after its next use."""
        self._is_retired = True
        if not self._in_flight and not after_use:
            self.close()

    def answered(self, answer: Any) -> None:
        if not self._in_flight:
            raise out_of_step()
        trip = self._in_flight[0]
        if not _is_in_step(answer, trip.last, is_last=len(trip.answers) == trip.count):
            raise out_of_step()
        if len(trip.answers) < trip.count:
            trip.answers.append(answer)
            return
        self._in_flight.popleft()
        if not trip.future.done():  # its waiter may have been cancelled
            trip.future.set_result(trip.answers)
        if self._is_retired and not self._in_flight:
            self.close()

    def pause_writing(self) -> None:
        """Called by the loop when there is more to send than the server takes."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._is_full = False
        self._next_turn()

    def closed(self, error: Exception) -> None:
        self.resume_writing()  # senders that wait find that it is closed
        self._set_alarm(math.inf)
        for trip in self._in_flight:
            if not trip.future.done():
                trip.future.set_exception(redis_errors.ConnectionError(str(error)))
        self._in_flight.clear()

    def _waited(self) -> float:
        """Seconds that the first round trip in flight has waited."""
        return self._loop.time() - self._in_flight[0].started if self._in_flight else 0.0


class _Roundtrip:
    __slots__ = ("answers", "count", "deadline", "future", "last", "started")

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int, timeout: float | None, last: bytes) -> None:
        self.future: asyncio.Future[list[Any]] = loop.create_future()
        self.count = count
        self.last = last  #: the answer to the ping behind its commands
        self.answers: list[Any] = []
        self.started = loop.time()
        self.deadline = math.inf if timeout is None else self.started + timeout


def _is_in_step(answer: Any, last: bytes, *, is_last: bool) -> bool:
    """Whether this can be the answer that is due. A server that refuses all commands refuses the ping, too."""
    if is_last:
        return answer == last or isinstance(answer, redis_errors.ResponseError | redis_errors.ConnectionError)
    return bool(answer != last)


class SyncConnection:
    """A connection for blocking code, one round trip at a time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # kept, because its deletion would close the socket
        self._socket = socket_of(connection)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._parser = _parser()
        self._last_use = -math.inf
        self._last_number = _FIRST_NUMBER
        self._tls = self._socket if isinstance(self._socket, ssl.SSLSocket) else None
        self._timeout: float | None = self._socket.gettimeout()
        if self._tls is None:
            _move_timeouts_to_kernel(self._socket)

    def is_stale(self) -> bool:
        """Whether the server closed it, or it holds an answer that nobody waits for.

        A connection that was in use a moment ago is not checked: if it has been closed since, the round trip tells.
        """
        if time.monotonic() - self._last_use < _FRESH_SECONDS:
            return False
        has_data = bool(self._poll.poll(0))
        return _is_stale_tls(self._tls) if has_data and self._tls is not None else has_data

    def roundtrip(
        self, commands: bytes, count: int, timeout: float = math.inf, is_current: Callable[[], bool] | None = None
    ) -> list[Any]:
        """Send so many commands and return their answers, errors among them; a redis-py TimeoutError if they are late.

        `is_current` is asked every second while no answer comes: whether this still is the server to ask.
        """
        deadline = time.monotonic() + timeout
        answers: list[Any] = []
        self._last_number += 1
        end_marker, last = _end_marker(self._last_number)
        try:
            self._send(commands + end_marker)
            while len(answers) <= count:
                data = self._receive(deadline, is_current)
                if not data:
                    raise redis_errors.ConnectionError("the server closed the connection")
                self._parser.feed(data)
                while (answer := self._parser.gets()) is not _INCOMPLETE:
                    if not _is_in_step(answer, last, is_last=len(answers) == count):
                        raise out_of_step()
                    answers.append(answer)
        except (TimeoutError, BlockingIOError) as error:
            raise redis_errors.TimeoutError("no answer in time") from error
        self._last_use = time.monotonic()
        return answers[:count]

    def _send(self, data: bytes) -> None:
        if self._tls is not None:
            self._tls.settimeout(self._timeout)
        self._socket.sendall(data)

    def _receive(self, deadline: float, is_current: Callable[[], bool] | None) -> bytes:
        if self._tls is not None:
            self._tls.settimeout(LATE_SECONDS)
        while True:
            try:
                if deadline - time.monotonic() < LATE_SECONDS:  # the socket would wait for longer
                    self._wait_until(deadline)
                return self._socket.recv(_READ_BYTES)
            except (TimeoutError, BlockingIOError):
                if time.monotonic() >= deadline or is_current is None or not is_current():
                    raise

    def _wait_until(self, deadline: float) -> None:
        """Wait until there is something to read, or raise TimeoutError."""
        if self._tls is not None and self._tls.pending():
            return  # it was decrypted before, and not read yet
        if not self._poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError

    def close(self) -> None:
        self._connection.disconnect()


def _move_timeouts_to_kernel(plain: socket.socket) -> None:
    """Have the kernel time out: Python would poll the socket before each send and each recv."""
    if timeout := plain.gettimeout():
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(min(timeout, LATE_SECONDS)))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
        plain.settimeout(None)


def _timeval(seconds: float) -> bytes:
    microseconds = max(round(seconds * 1_000_000), 1)  # zero would mean for ever
    return struct.pack("@ll", *divmod(microseconds, 1_000_000))


def _is_stale_tls(connection: ssl.SSLSocket) -> bool:
    """The same for TLS, where what arrived need not be an answer: the server also sends keys for later."""
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
    return hiredis.Reader(protocolError=redis_errors.InvalidResponse, replyError=parse_error, notEnoughData=_INCOMPLETE)
