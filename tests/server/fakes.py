"""Tiny servers whose answers no real server would give."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

Answer = Callable[[bytes], bytes]
GOOD = {"redis_version": "7.4.0", "role": "master", "loading": 0, "aof_enabled": 1, "maxmemory_policy": "noeviction"}


@contextlib.contextmanager
def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Listen on a port, and answer all that arrives, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        over = threading.Event()
        thread = threading.Thread(target=_accept, args=(listener, answer, over, tls))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


def _accept(listener: socket.socket, answer: Answer, over: threading.Event, tls: ssl.SSLContext | None) -> None:
    threads = []
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            threads.append(threading.Thread(target=_serve, args=(connection, answer, tls)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def _serve(connection: socket.socket, answer: Answer, tls: ssl.SSLContext | None) -> None:
    connection.settimeout(5)
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        stack.enter_context(connection)
        stream = stack.enter_context(tls.wrap_socket(connection, server_side=True)) if tls else connection
        while data := stream.recv(65536):
            stream.sendall(answer(data))


def with_info(**info: object) -> Answer:
    """Answer INFO with these fields, and OK to each other command."""
    text = "# Server\r\n" + "".join(f"{name}:{value}\r\n" for name, value in info.items())
    bulk = f"${len(text)}\r\n{text}\r\n".encode()
    return answering({b"INFO": bulk})


def answering(answers: dict[bytes, bytes]) -> Answer:
    """Give the answer of the first word that a command has; a ping's is its text, that of any other command OK."""

    def answer(command: bytes) -> bytes:
        usual = command.partition(b"PING\r\n")[2] or b"+OK\r\n"
        return next((answer for word, answer in answers.items() if word in command), usual)

    return lambda words: b"".join(map(answer, commands(words)))


def commands(data: bytes) -> list[bytes]:
    # SETINFO must not count as INFO; each command begins with * and its number of words.
    return data.replace(b"SETINFO", b"SETIN").split(b"*")[1:]
