"""The socket between a supervisor and a child: a JSON list per line, a word and its values."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any


def send(sock: socket.socket, word: str, *values: Any) -> None:
    """Send a message; nothing happens if the other side is gone."""
    with suppress(OSError):
        sock.sendall(encode(word, *values))


def encode(word: str, *values: Any) -> bytes:
    return json.dumps([word, *values]).encode() + b"\n"


def receive(sock: socket.socket) -> Iterator[list[Any]]:
    """The other side's messages, until it is gone."""
    with suppress(OSError), sock.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)


def listen(messages: Iterator[list[Any]], on_message: Callable[[list[Any]], None], on_end: Callable[[], None]) -> None:
    """Receive in a thread, so that even a blocked loop does not miss the end of the other side."""

    def run() -> None:
        for message in messages:
            on_message(message)
        on_end()

    threading.Thread(target=run, name="penstock-ipc", daemon=True).start()
