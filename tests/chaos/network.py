"""What lies between clients and their server: replies may be late, lost or doubled, connections cut or stalled."""

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import hiredis

from tests.proxy import Proxy, _cut


class Network(Proxy):
    """A proxy for one group of clients, which can be led to another server."""

    def __init__(self, port: int, *, is_replication: bool = False) -> None:
        self._reads = not is_replication  #: what a primary sends has parts that are no replies
        self._mishaps: deque[Callable[[socket.socket, bytes], None]] = deque()
        super().__init__(port)

    def mishap(self, *kinds: str) -> None:
        """Something happens to the next whole replies, one of these each: `drop`, `double` or `delay`."""
        known: dict[str, Callable[[socket.socket, bytes], None]] = {
            "drop": lambda near, chunk: None,
            "double": lambda near, chunk: near.sendall(chunk + chunk),
            "delay": _late,
        }
        self._mishaps.extend(known[kind] for kind in kinds)

    def forgive(self) -> None:
        """What has not happened yet does not."""
        self._mishaps.clear()

    def lead(self, port: int) -> None:
        """New connections go to another server; the others are cut."""
        self.target = port
        self.cut()

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        self._run(self._pass, near, far, self._flows["requests"], False)
        self._run(self._pass, far, near, self._flows["replies"], True)

    def _pass(self, source: socket.socket, sink: socket.socket, flow: threading.Event, replies: bool) -> None:
        reader = hiredis.Reader() if replies and self._reads else None
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                flow.wait()
                whole = reader is not None and _are_whole(reader, chunk)
                if whole and self._mishaps and not chunk.startswith((b">", b"*3\r\n$8\r\nsmessage")):
                    with contextlib.suppress(IndexError):  # another connection was faster
                        self._mishaps.popleft()(sink, chunk)
                        continue
                sink.sendall(chunk)
        _cut(source, sink)


def _are_whole(reader: hiredis.Reader, chunk: bytes) -> bool:
    """Whether nothing but whole replies is in it."""
    begun = reader.has_data()
    reader.feed(chunk)
    while reader.gets() is not False:
        pass
    return not begun and not reader.has_data()


def _late(near: socket.socket, chunk: bytes) -> None:
    time.sleep(0.7)
    near.sendall(chunk)
