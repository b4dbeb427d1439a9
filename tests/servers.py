"""Real servers for the tests, started from the embedded binary and ended by process id."""

import contextlib
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import redis

from penstock.server.embedded.binary import find_binary

S = TypeVar("S", "Server", "Cluster")


class Server:
    """One server process on a loopback port."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-test-"))
        self.port = port or free_port()
        self.options = options
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [find_binary(), "--port", self.port, "--bind", "127.0.0.1", "--dir", self.folder, "--save", ""]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([*map(str, command), *self.options], stdout=log, stderr=log, start_new_session=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=10)

    def wait(self) -> None:
        """Wait until it answers."""
        with contextlib.closing(self.client()) as client:
            wait_for(client.ping, ignore=(redis.ConnectionError,))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.process = self._start()
        self.wait()

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster:
    """Three masters that share the slots."""

    def __init__(self, *options: str) -> None:
        ports = [free_pair() for _ in range(3)]
        usual = ("--cluster-enabled", "yes", "--appendonly", "no")
        self.nodes = [Server(*usual, *options, port=port) for port in ports]
        for node in self.nodes:
            node.wait()
        clients: list[Any] = [node.client() for node in self.nodes]
        for i, client in enumerate(clients):
            first, last = 16384 * i // 3, 16384 * (i + 1) // 3 - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        for client in clients:
            wait_for(partial(_settled, client, ports), timeout=60)
            client.close()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def end(self) -> None:
        for node in self.nodes:
            node.end()


def _settled(client: Any, ports: list[int]) -> bool:
    """Whether a node knows all others; if not, introduce it to them (again, as a busy machine may lose the first)."""
    info = client.cluster("INFO")
    if int(info["cluster_known_nodes"]) < len(ports):
        for port in ports:
            client.execute_command("CLUSTER MEET", "127.0.0.1", port)
        time.sleep(0.2)
    return bool(info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(ports))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_pair() -> int:
    """A free port for a node with a free bus port 10,000 above it; below the range of outgoing connections."""
    while True:
        port = random.randrange(10_000, 20_000)  # other tests look for one at the same time
        with socket.socket() as client, socket.socket() as bus, contextlib.suppress(OSError):
            client.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port


def wait_for(condition: Callable[[], Any], *, timeout: float = 15.0, ignore: tuple[type[Exception], ...] = ()) -> Any:
    """Poll until the condition is true, and return its value."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(*ignore):
            if value := condition():
                return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s")
        time.sleep(0.02)


@contextlib.contextmanager
def running(server: S) -> Iterator[S]:
    try:
        if isinstance(server, Server):
            server.wait()
        yield server
    finally:
        server.end()
