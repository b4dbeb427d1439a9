"""The socket between a supervisor and a child: a JSON list per line, a word and what belongs to it."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any


def send(sock: socket.socket, word: str, *values: Any) -> None:
    """Say something; to one that is gone, nothing."""
    with suppress(OSError):
        sock.sendall(packed(word, *values))


def packed(word: str, *values: Any) -> bytes:
    return json.dumps([word, *values]).encode() + b"\n"


def receive(sock: socket.socket) -> Iterator[list[Any]]:
    """Everything that the other side says, until it is gone."""
    with suppress(OSError), sock.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)


def listen(sock: socket.socket, heard: Callable[[list[Any]], None], gone: Callable[[], None]) -> None:
    """Listen in a thread, so that not even a loop that is blocked misses the end of the other side."""

    def run() -> None:
        for message in receive(sock):
            heard(message)
        gone()

    threading.Thread(target=run, name="penstock-wire", daemon=True).start()
