"""What breaks: each fault is drawn from the seed, lasts for a while, and stands in the ledger with its times."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence

from penstock import Penstock
from penstock.engine.engine import Engine
from penstock.engine.read.views import Node
from penstock.errors import PenstockError
from tests.chaos.attempts import REAPED, pid_of
from tests.chaos.crew import Crew, Group
from tests.chaos.failover import Failover
from tests.chaos.ledger import now

Fault = Callable[[], Awaitable[None]]


class Faults:
    """One fault after the other, a moment between them."""

    def __init__(
        self, crew: Crew, apps: Sequence[Penstock], rng: random.Random, *, kind: str, only: Sequence[str] = ()
    ) -> None:
        self._crew = crew
        self._apps = apps
        self._rng = rng
        self.happened: dict[str, int] = {}
        self.all: dict[str, tuple[int, Fault]] = {
            "kill-child": (4, self._kill_child),
            "kill-job-process": (1, self._kill_job_process),
            "kill-worker": (3, self._kill_worker),
            "kill-server": (3, self._kill_server),
            "stop-child": (2, self._stop_child),
            "stop-worker": (5, self._stop_worker),
            "stop-group": (2, self._stop_group),
            REAPED: (4, self._reap_live),
            "stop-server": (3, self._stop_server),
            "server-away": (4, self._server_away),
            "cut": (3, self._cut),
            "stall": (3, self._stall),
            "stall-and-kill": (3, self._stall_and_kill),
            "late-replies": (2, self._late_replies),
            "drop-replies": (2, self._drop_replies),
            "double-replies": (1, self._double_replies),
            "flush": (2, self._flush),
            "full": (2, self._full),
        }
        if kind == "failover":
            self.all["failover"] = (12, Failover(crew, rng, self.note).happen)
        if kind == "clock":
            self.all["step-clock"] = (10, self._step_clock)
        if only:
            self.all = {name: self.all[name] for name in only}

    async def run(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        names, weights = list(self.all), [weight for weight, _ in self.all.values()]
        while True:
            await asyncio.sleep(self._rng.uniform(0.3, 2.5))
            (name,) = self._rng.choices(names, weights)
            if asyncio.get_running_loop().time() > until - 1:
                return
            self.happened[name] = self.happened.get(name, 0) + 1
            self._crew.ledger.note("begins", kind=name)
            await self.all[name][1]()

    def note(self, kind: str, since: int, group: str = "", pids: Sequence[int] = (), **more: object) -> None:
        self._crew.ledger.note("fault", kind=kind, since=since, until=now(), group=group, pids=list(pids), **more)

    # Choosing

    def _group(self, supervised: bool | None = None) -> Group:
        fitting = [g for g in self._crew.groups.values() if supervised is None or g.kind.supervised is supervised]
        return self._rng.choice(fitting)

    def _child(self) -> tuple[Group, int]:
        group = self._group(supervised=True)
        children = self._crew.census.children(group.pid)
        return group, self._rng.choice(children) if children else 0

    def _beyond(self, group: Group) -> float:
        """Seconds that are longer than its lease."""
        return group.kind.life * self._rng.uniform(1.15, 2) + 0.3

    # Processes

    async def _kill_child(self) -> None:
        group, child = self._child()
        if child:
            self._kill("kill-child", group, child)

    async def _kill_job_process(self) -> None:
        group = self._group()
        tree = self._crew.census.tree(group.pid)
        below = [pid for pid in tree if not group.kind.supervised or self._crew.census.parents[pid] != group.pid]
        if below:
            self._kill("kill-job-process", group, self._rng.choice(below))

    def _kill(self, kind: str, group: Group, pid: int) -> None:
        since = now()
        holders = [pid, self._crew.census.parents.get(pid, 0)] if kind == "kill-job-process" else [pid]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.note(kind, since, group.name, holders)

    async def _kill_worker(self) -> None:
        """A supervisor, or a program; another takes its place."""
        group, since = self._group(), now()
        name, pids = group.name, [group.pid, *self._crew.census.tree(group.pid)]
        await asyncio.to_thread(group.kill)
        await asyncio.sleep(self._rng.choice([0, 0.5, 2]))
        group.start()
        self.note("kill-worker", since, name, pids)

    async def _kill_server(self) -> None:
        since = now()
        await asyncio.to_thread(self._crew.server.kill)
        await asyncio.sleep(self._rng.choice([0, 0.5, 2, 3, 5, 8]))
        await asyncio.to_thread(self._crew.server.restart)
        self.note("kill-server", since)

    async def _stop(self, pids: Sequence[int], seconds: float) -> None:
        try:
            for pid in pids:
                _tell(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            for pid in pids:
                _tell(pid, signal.SIGCONT)

    async def _stop_child(self) -> None:
        group, child = self._child()
        since = now()
        if child:
            await self._stop([child], self._beyond(group))
            self.note("stop-child", since, group.name, [child])

    async def _stop_worker(self) -> None:
        """A supervisor alone, or a program, which renews itself."""
        group, since = self._group(), now()
        await self._stop([group.pid], self._beyond(group))
        self.note("stop-worker", since, group.name, [group.pid])

    async def _stop_group(self) -> None:
        group, since = self._group(supervised=True), now()
        pids = [group.pid, *self._crew.census.tree(group.pid)]
        await self._stop(pids, self._beyond(group))
        self.note("stop-group", since, group.name, pids)

    async def _stop_server(self) -> None:
        since = now()
        await self._stop([self._crew.server.process.pid], self._rng.choice([0.6, 1.2, 2, 3, 4, 8]))
        self.note("stop-server", since)

    async def _reap_live(self) -> None:
        """Somebody takes a live worker for dead, while more than one of its calls may be under way."""
        app = self._rng.choice(self._apps)
        with contextlib.suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(5):
                if nodes := await app.client.views.workers():
                    await self._reap(app.client.engine, self._rng.choice(nodes))

    async def _reap(self, engine: Engine, node: Node) -> None:
        pid = pid_of(node.worker)
        group = next((g for g in self._crew.groups.values() if pid in (g.pid, *self._crew.census.tree(g.pid))), None)
        ways = self._rng.choice([(), ("requests",), ("replies",)])
        if group is not None:
            group.network.stall(*ways)
        since, more = now(), 1
        try:
            await asyncio.sleep(self._rng.uniform(0, 0.3))
            since = now()
            while more:
                _, more = await engine.reap_worker(node.worker, [], node.life)
        finally:
            if group is not None:
                group.network.flow()
            self.note(REAPED, since, group.name if group else "", [pid], worker=node.worker, ways=ways)

    async def _server_away(self) -> None:
        """Nobody is heard of for a while, and one group a moment longer: that is no reason to take it for dead."""
        group, since = self._group(supervised=True), now()
        _tell(self._crew.server.process.pid, signal.SIGSTOP)
        await asyncio.sleep(group.kind.life + self._rng.uniform(0.2, 0.5) * (3 - group.kind.life))
        group.network.stall("requests")
        _tell(self._crew.server.process.pid, signal.SIGCONT)
        await asyncio.sleep(0.4)
        group.network.flow()
        self.note("server-away", since, late=group.name)

    # The network

    async def _cut(self) -> None:
        since, letters = now(), self._rng.choice([*map(list, self._crew.networks), list(self._crew.networks)])
        for _ in range(self._rng.choice([1, 1, 5])):
            for letter in letters:
                self._crew.networks[letter].cut()
            await asyncio.sleep(0.1)
        self.note("cut", since, letters=letters)

    async def _stall(self) -> None:
        """Nothing passes between one group and the server for longer than its lease."""
        group, since = self._group(), now()
        ways = self._rng.choice([("requests",), ("replies",), ("requests", "replies")])
        group.network.stall(*ways)
        await asyncio.sleep(self._beyond(group))
        group.network.flow()
        self.note("stall", since, group.name, [group.pid], ways=ways)

    async def _stall_and_kill(self) -> None:
        """Jobs end, which nobody hears of; then their process is killed."""
        group = self._group(supervised=True)
        since, pids = now(), self._crew.census.children(group.pid)
        group.network.stall("requests")
        await asyncio.sleep(self._rng.uniform(0.2, 0.5) * group.kind.life)
        for pid in pids:
            _tell(pid, signal.SIGKILL)
        group.network.flow()
        self.note("stall-and-kill", since, group.name, pids)

    async def _late_replies(self) -> None:
        await self._mishaps("late-replies", "delay")

    async def _drop_replies(self) -> None:
        await self._mishaps("drop-replies", "drop")

    async def _double_replies(self) -> None:
        await self._mishaps("double-replies", "double")

    async def _mishaps(self, name: str, kind: str) -> None:
        since, letters = now(), self._rng.sample(list(self._crew.networks), 2)
        for letter in letters:
            self._crew.networks[letter].mishap(*[kind] * self._rng.choice([1, 1, 3]))
        await asyncio.sleep(1)
        for letter in letters:
            self._crew.networks[letter].forgive()
        self.note(name, since, letters=letters)

    # The server

    async def _flush(self) -> None:
        since, what = now(), self._rng.choice(["FUNCTION", "SCRIPT"])
        with contextlib.closing(self._crew.server.client()) as client:
            await asyncio.to_thread(client.execute_command, f"{what} FLUSH")
        self.note("flush", since, flushed=what)

    async def _full(self) -> None:
        since = now()
        with contextlib.closing(self._crew.server.client()) as client:
            await asyncio.to_thread(client.config_set, "maxmemory", "1mb")
            await asyncio.sleep(self._rng.uniform(0.5, 3))
            await asyncio.to_thread(client.config_set, "maxmemory", "0")
        self.note("full", since)

    async def _step_clock(self) -> None:
        """The time of day of the server steps; that of everybody else does not."""
        since, step = now(), self._rng.choice([-4.0, -1.5, -0.5, 0.5, 1.5, 4.0])
        self._crew.step(step)
        await asyncio.sleep(self._rng.uniform(0, 2))
        self.note("step-clock", since, seconds=step)


def _tell(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)
