"""The server that every system is measured on: the same binary with the same settings, fresh for each part of a run."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from penstock.server.embedded.binary import environment, find_binary

SETTINGS: Final = (
    *("--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
    *("--auto-aof-rewrite-percentage", "0"),  # it would fall into the time of one measurement or another
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What clients had from the server."""

    bytes: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Meter:
    """The server's counts at a moment: bytes of each connection, and seconds of CPU."""

    clients: dict[int, int]
    cpu: float

    def since(self, earlier: "Meter") -> Usage:
        """What was used in between, but for connections that were closed meanwhile."""
        grown = sum(now - earlier.clients.get(client, 0) for client, now in self.clients.items())
        return Usage(grown, self.cpu - earlier.cpu)


class Server:
    """One server process on a loopback port."""

    def __init__(self, folder: Path, before: tuple[str, ...] = (), limit: float = 15.0) -> None:
        """`before`: a program that it runs under; `limit`: seconds in which it must answer."""
        self._limit = limit
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        command = [*before, find_binary(), "--port", self.port, "--bind", "127.0.0.1", "--dir", folder, *SETTINGS]
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, command)), env=environment(), stdout=log, stderr=log, start_new_session=True
            )
        self._client: Any = redis.Redis(port=self.port, socket_timeout=10)
        self._own = 0

    def wait(self) -> None:
        until = time.monotonic() + self._limit
        while True:
            try:
                self._own = self._client.client_id()
            except redis.ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
            else:
                return

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def version(self) -> str:
        info = self._client.info("server")
        name = info.get("server_name", "redis")
        return f"{name} {info.get(f'{name}_version', info['redis_version'])}"

    def memory(self) -> int:
        """Bytes in use."""
        return int(self._client.info("memory")["used_memory"])

    def settle(self) -> None:
        """Wait until it does not write its append-only file anew: then each page that it writes to is copied."""
        until = time.monotonic() + 120
        while (info := self._client.info("persistence"))["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]:
            if time.monotonic() > until:
                raise SystemExit("the server does not end to write its append-only file anew")
            time.sleep(0.5)

    def meter(self) -> Meter:
        clients = {
            int(client["id"]): int(client.get("tot-net-in", 0)) + int(client.get("tot-net-out", 0))
            for client in self._client.client_list()
            if int(client["id"]) != self._own
        }
        used = self._client.info("cpu")
        return Meter(clients, used["used_cpu_user"] + used["used_cpu_sys"])

    @contextmanager
    def counting(self) -> Iterator["Counter"]:
        """Count the commands that clients send; this slows the server down, so nothing else is measured meanwhile."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"MONITOR\r\n")
            counter = Counter(connection)
            counter.start()
            yield counter
            time.sleep(0.05)  # what is on its way
            connection.shutdown(socket.SHUT_RDWR)
            counter.join()

    def end(self) -> None:
        with contextlib.suppress(redis.RedisError):
            self._client.close()
        self._process.kill()
        self._process.wait()


class Counter(threading.Thread):
    """Reads what MONITOR shows. INFO cannot tell a client's commands from those that its scripts call."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(daemon=True)
        self._lines = connection.makefile("rb")
        self.commands = 0

    def run(self) -> None:
        for line in self._lines:
            self.commands += b"]" in line and not line.partition(b"]")[0].endswith(b" lua")


@contextmanager
def running() -> Iterator[tuple[Server, Path]]:
    """A fresh server, and a folder for whatever runs on it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = Server(folder)
    try:
        server.wait()
        yield server, folder
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
