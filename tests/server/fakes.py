"""Tiny servers that say what no real server of ours would."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

Answer = Callable[[bytes], bytes]
GOOD = {"redis_version": "7.4.0", "role": "master", "loading": 0, "aof_enabled": 1, "maxmemory_policy": "noeviction"}


@contextlib.contextmanager
def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answer whatever comes on a port until the block is left."""
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
    conversations = []
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            conversations.append(threading.Thread(target=_converse, args=(connection, answer, tls)))
            conversations[-1].start()
    for conversation in conversations:
        conversation.join()


def _converse(connection: socket.socket, answer: Answer, tls: ssl.SSLContext | None) -> None:
    connection.settimeout(5)
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        stack.enter_context(connection)
        spoken = stack.enter_context(tls.wrap_socket(connection, server_side=True)) if tls else connection
        while words := spoken.recv(65536):
            spoken.sendall(answer(words))


def saying(**info: object) -> Answer:
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


def commands(words: bytes) -> list[bytes]:
    # SETINFO is no INFO; a command begins with the number of its words.
    return words.replace(b"SETINFO", b"SETIN").split(b"*")[1:]
