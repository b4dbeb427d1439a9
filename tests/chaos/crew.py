"""Everything that runs besides this process: the server, and the workers with what lies between."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.census import Census
from tests.chaos.ledger import Ledger
from tests.chaos.network import Network
from tests.chaos.probe import Probe
from tests.chaos.undo import undo
from tests.servers import Server

HERE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Kind:
    """What a group of processes is started as."""

    letter: str
    life: float  #: seconds
    command: tuple[str, ...]
    lacks: tuple[str, ...] = ()  #: tasks that its code does not know
    supervised: bool = True
    streams: bool = False


KILLER = "returns_and_dies"  #: a program has no supervisor that would start it again
WORKER = ("-m", "penstock.cli", "worker", "tests.chaos.tasks:app", "--grace", "5s")
PROGRAM = ("-m", "tests.chaos.program")
KINDS = (
    Kind("A", 2.0, (*WORKER, "--lease", "2s", "-p", "2", "-c", "6")),
    Kind("B", 1.0, (*WORKER, "--lease", "1s", "-c", "5", "-q", "bulk:3,default:2,orders:1,capped:1"), lacks=("old",)),
    Kind("C", 5.0, (*PROGRAM, "5s", "1", "3"), lacks=(KILLER,), supervised=False, streams=True),
    Kind("D", 2.0, (*PROGRAM, "2s"), lacks=(KILLER,), supervised=False),
)
STREAM_LIFE = 2.0


class Group:
    """One of these kinds as it was started last; its processes have a network of their own before the server."""

    def __init__(self, kind: Kind, network: Network, environment: dict[str, str], folder: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        self.kind = kind
        self.network = network
        self._environment = environment | {"CHAOS_URL": network.url, "CHAOS_LACKS": " ".join(kind.lacks)}
        self._folder = folder
        self._starts = 0
        self.name = ""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def start(self) -> None:
        self._starts += 1
        self.name = f"{self.kind.letter}-{self._starts}"
        with (self._folder / f"log-{self.kind.letter}").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.kind.command],
                cwd=HERE,
                env=self._environment | {"CHAOS_GROUP": self.name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._ledger.note("group", name=self.name, pid=self.process.pid)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class ClockedServer(Server):
    """Its time of day is what a file says; how long things take is not touched."""

    def __init__(self, clock: Path, *options: str) -> None:
        clock.write_text("+0")
        self._environment = os.environ | {
            "LD_PRELOAD": str(faketime()),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        super().__init__(*options)

    def _start(self) -> "subprocess.Popen[bytes]":
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            return super()._start()
        finally:
            os.environ.clear()
            os.environ.update(before)


def faketime() -> Path | None:
    """The library that gives a process another time of day: CHAOS_FAKETIME, or where Debian's libfaketime puts it."""
    given = os.environ.get("CHAOS_FAKETIME")
    found = [Path(given)] if given else sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return found[0] if found else None


class Crew:
    """Started by `start`, ended by `end` whatever happened in between."""

    def __init__(self, folder: Path, *, kind: str, undone: str | None = None) -> None:
        self.folder = folder
        self._code = {"PYTHONPATH": str(undo(undone, folder))} if undone else {}
        self.kind = kind
        self.name = f"chaos-{secrets.token_hex(4)}"
        self.ledger = Ledger(folder / "ledger")
        self.census = Census(str(folder / "ledger"), self.ledger)
        self.probe = Probe(lambda: self.server.port, self.ledger)
        self.clock = folder / "clock"
        self.offset = 0.0
        self.spent: list[Server] = []
        self.server = self._serve()
        self.networks: dict[str, Network] = {}
        self.groups: dict[str, Group] = {}

    def network(self, letter: str) -> Network:
        self.networks[letter] = made = Network(self.server.port)
        return made

    def start(self) -> None:
        self.server.wait()
        environment = os.environ | {"CHAOS_NAME": self.name, "CHAOS_LEDGER": str(self.folder / "ledger")}
        environment |= self._code | {"CHAOS_STREAM_LEASE": f"{STREAM_LIFE:g}s", "PYTHONFAULTHANDLER": "1"}
        self.network("P")
        for kind in KINDS:
            self.groups[kind.letter] = Group(kind, self.network(kind.letter), environment, self.folder, self.ledger)
            self.groups[kind.letter].start()
        self.census.start()
        self.probe.start()

    def leave(self, seconds: float = 20) -> list[str]:
        """Have all workers end as they should; which did not."""
        for group in self.groups.values():
            if group.process is not None:
                group.process.send_signal(signal.SIGTERM)
        late = []
        for group in self.groups.values():
            try:
                assert group.process is not None
                group.process.wait(seconds)
            except subprocess.TimeoutExpired:
                late.append(f"worker {group.name} did not end within {seconds:g} s after SIGTERM")
        self.census.look()
        return late

    def end(self) -> None:
        """Kill what is left: by its number, nobody else's."""
        self.census.stop()
        self.probe.stop()
        for group in self.groups.values():
            group.kill()
        self.census.look()
        for pid in self.census.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for network in self.networks.values():
            network.close()
        for server in (self.server, *self.spent):
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
            server.end()
        self.ledger.close()

    # The server

    def _serve(self) -> Server:
        """What it has acknowledged is on disk."""
        options = ("--appendonly", "yes", "--appendfsync", "always")
        return ClockedServer(self.clock, *options) if self.kind == "clock" else Server(*options)

    def second_server(self) -> Server:
        """Another one, for a replica; it is ended with the rest."""
        self.spent.append(made := self._serve())
        return made

    def promote(self, server: Server) -> None:
        """Everybody is led to this one from now on."""
        self.spent = [one for one in (*self.spent, self.server) if one is not server]
        self.server = server
        for network in self.networks.values():
            network.lead(server.port)

    def step(self, seconds: float) -> None:
        """The server's time of day is off by so much more."""
        self.offset += seconds
        self.clock.write_text(f"{self.offset:+.3f}")

    @staticmethod
    def can_step() -> bool:
        return faketime() is not None
