"""A TCP proxy in front of a server: it can lose a reply to a command that was executed, double it, or stall."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import hiredis


class Proxy:
    """Passes everything on. A reply that is to be lost is not sent; its connection is cut instead."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.lost = 0
        self.mute = False  #: drop pub/sub messages
        self._hang_on: bytes | None = None  #: hang the connection whose request contains this
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._to_lose: tuple[str, int] | None = None
        self._copies: int | None = None  #: of the next reply to the command `_copied`
        self._copied = ""
        self._flows = {"requests": threading.Event(), "replies": threading.Event()}
        self.flow()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._acceptor = self._run(self._accept)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def lose(self, nth: int = 1, command: str = "EVALSHA") -> None:
        """Lose the reply to the nth such command from now on, whatever the connection; functions count as scripts."""
        with self._lock:
            self._to_lose = (command, nth)

    def pass_on(self, copies: int, command: str = "EVALSHA") -> None:
        """Pass on the next reply to such a command so many times: never, or twice; functions count as scripts."""
        self._copied, self._copies = command, copies

    @property
    def has_passed_on(self) -> bool:
        return self._copies is None

    def stall(self, *ways: str) -> None:
        """Hold back `requests`, `replies` or both on all connections; none is closed."""
        for way in ways:
            self._flows[way].clear()

    def flow(self) -> None:
        """Pass everything on again, starting with what was held back."""
        for flow in self._flows.values():
            flow.set()

    def hang(self, what: bytes = b"") -> None:
        """From the next request that contains this, pass nothing on from its connection, but do not close it."""
        self._hang_on = what

    @property
    def has_hung(self) -> bool:
        return self._hang_on is None

    def cut(self) -> None:
        """Cut every connection; new ones are passed on."""
        _cut(*list(self._sockets))

    def close(self) -> None:
        self.flow()
        self._closed.set()
        _cut(self._listener)
        self._acceptor.join(5)  # first, so that it opens no more
        for open_socket in list(self._sockets):
            _cut(open_socket)
        for thread in self._threads:
            thread.join(5)

    def _run(self, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                except OSError:  # the server is away; the next connection may go to another one
                    _cut(near)
                    continue
                far.settimeout(None)
                self._sockets = {one for one in self._sockets if one.fileno() >= 0} | {near, far}
                self._threads = [one for one in self._threads if one.is_alive()]
                self._join(near, far)

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        asked: deque[str] = deque()
        self._run(self._requests, near, far, asked)
        self._run(self._replies, far, near, asked)

    def _requests(self, near: socket.socket, far: socket.socket, asked: deque[str]) -> None:
        for chunk, parts in _read(near):
            asked.extend(part[0].decode().upper().replace("FCALL", "EVALSHA") for part in parts)
            self._flows["requests"].wait()
            if self._hang_on is not None and self._hang_on in chunk:
                self._hang_on = None
                self._closed.wait()
            with contextlib.suppress(OSError):
                far.sendall(chunk)
        _cut(near, far)

    def _replies(self, far: socket.socket, near: socket.socket, asked: deque[str]) -> None:
        for chunk, parts in _read(far):
            commands = [asked.popleft() for _ in parts if asked]
            if self._copies is not None and self._copied in commands:
                replies = _replies_in(chunk)
                replies[commands.index(self._copied)] *= self._copies
                chunk, self._copies = b"".join(replies), None  # noqa: PLW2901
            lost = [self._is_lost(command) for command in commands]
            if any(lost):
                break
            if self.mute and b"smessage" in chunk:
                continue
            self._flows["replies"].wait()
            with contextlib.suppress(OSError):
                near.sendall(chunk)
        _cut(near, far)

    def _is_lost(self, command: str) -> bool:
        with self._lock:
            if self._to_lose is None or self._to_lose[0] != command:
                return False
            left = self._to_lose[1] - 1
            self._to_lose = (command, left) if left else None
            self.lost += not left
            return not left


def _read(source: socket.socket) -> Iterator[tuple[bytes, list[list[bytes]]]]:
    """Yield chunks as they arrive, each with the requests or replies that are complete with it."""
    reader = hiredis.Reader()
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            reader.feed(chunk)
            parts = []
            while (part := reader.gets()) is not False:
                parts.append(part)
            yield chunk, parts


def _replies_in(chunk: bytes) -> list[bytes]:
    """The bytes of each reply, and at last those of an incomplete one."""
    reader, replies, begin = hiredis.Reader(), list[bytes](), 0
    for end in range(1, len(chunk) + 1):
        reader.feed(chunk[end - 1 : end])
        if reader.gets() is not False:
            replies.append(chunk[begin:end])
            begin = end
    return [*replies, chunk[begin:]]


def _cut(*sockets: socket.socket) -> None:
    for open_socket in sockets:
        with contextlib.suppress(OSError):
            open_socket.shutdown(socket.SHUT_RDWR)
        open_socket.close()


@contextlib.contextmanager
def tls_before(port: int, certificate: Path) -> Iterator[int]:
    """A port with TLS in front of one without."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while chunk := await source.read(65536):
                sink.write(chunk)
                await sink.drain()
        sink.transport.abort()

    async def both_ways(near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        far, to_far = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(near, to_far), pump(far, to_near))

    async def serve() -> None:
        server = await asyncio.start_server(both_ways, "localhost", 0, family=socket.AF_INET, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await over.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    over = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(5)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@contextlib.contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
