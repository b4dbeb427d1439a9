"""All users of a primary that hangs or is demoted move to the server that takes its place."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock, Unavailable
from penstock.errors import UnsuitableServer
from penstock.worker.fetch import IDLE_POLL_INTERVAL
from tests.app_helpers import eventually
from tests.conftest import namespace
from tests.proxy import proxied
from tests.servers import Cluster, Server, free_pair, running, wait_for
from tests.worker import harness
from tests.worker.harness import crew_at, tree

AFTER_PROMOTION = 6.0  #: seconds within which whoever calls goes on; mostly it is one, but the machine may be busy
IDLE_AFTER_PROMOTION = AFTER_PROMOTION + IDLE_POLL_INTERVAL  #: who has nothing to do calls that often


class Failover(Cluster):
    """A cluster that replaces a primary soon; one of its primaries has a replica."""

    def __init__(self) -> None:
        super().__init__("--cluster-node-timeout", "700", "--cluster-replica-validity-factor", "0")
        self.replica = Server(
            "--cluster-enabled", "yes", "--appendonly", "no", "--cluster-node-timeout", "700", port=free_pair()
        )
        self.replica.wait()

    @property
    def primary(self) -> Server:
        return self.nodes[0]

    def follow(self) -> None:
        """Have the replica follow the first primary."""
        client: Any = self.replica.client()
        primary: Any = self.primary.client()
        name = primary.execute_command("CLUSTER MYID")
        client.execute_command("CLUSTER MEET", "127.0.0.1", self.primary.port)
        wait_for(partial(_follows, client, name), timeout=30)
        wait_for(lambda: client.info("replication").get("master_link_status") == "up", timeout=30)
        for node in self.nodes:
            wait_for(partial(_knows, node, self.replica.port), timeout=30)

    def promoted(self) -> bool:
        return bool(self.replica.client().info("replication")["role"] == "master")

    def namespace(self) -> str:
        """One whose keys are on the first primary."""
        client: Any = self.primary.client()
        while True:
            name = namespace()
            if client.execute_command("CLUSTER KEYSLOT", f"penstock:{{{name}}}:meta") < 16384 // 3:
                return name

    def end(self) -> None:
        self.replica.end()
        super().end()


def _follows(client: Any, primary: bytes) -> bool:
    with suppress(Exception):
        return bool(client.execute_command("CLUSTER REPLICATE", primary))
    return False


def _knows(node: Server, replica: int) -> bool:
    client: Any = node.client()
    return str(replica) in str(client.execute_command("CLUSTER SLOTS"))


@pytest.fixture
def failover() -> Iterator[Failover]:
    cluster = Failover()
    with running(cluster):
        cluster.follow()
        yield cluster


@contextmanager
def hanging(server: Server) -> Iterator[None]:
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def _replicate(server: Server, host: str, port: str | int) -> None:
    client: Any = server.client()
    client.replicaof(host, port)


@pytest.mark.integration
async def test_callers_and_a_worker_leave_a_primary_that_hangs_for_its_replica(failover: Failover) -> None:
    app = Penstock(failover.namespace(), url=failover.url, deadline="30s")

    @app.task
    async def echo(x: int) -> int:
        return x

    answered: dict[str, float] = {}

    async def call_again_and_again() -> None:
        n = 0
        while True:
            n += 1
            assert await (await echo.enqueue(n)).result() == n
            answered["result"] = time.monotonic()

    def block_again_and_again() -> None:
        while True:
            echo.enqueue_sync(0)
            answered["blocking"] = time.monotonic()
            if over.is_set():
                return

    async def read_again_and_again() -> None:
        while True:
            await app.client.views.counts()
            answered["view"] = time.monotonic()
            await asyncio.sleep(0.01)

    over = asyncio.Event()
    async with app, app.worker(lease="3s", grace="1s"):
        loops = [asyncio.ensure_future(call_again_and_again()) for _ in range(5)]
        loops += [asyncio.ensure_future(read_again_and_again())]
        loops += [asyncio.ensure_future(asyncio.to_thread(block_again_and_again))]
        await eventually(lambda: len(answered) == 3)
        with hanging(failover.primary):
            began = time.monotonic()
            await asyncio.to_thread(wait_for, failover.promoted, timeout=30)
            promoted = time.monotonic()
            await eventually(lambda: min(answered.values()) > promoted + 0.1, within=AFTER_PROMOTION)
            print(f"promoted after {promoted - began:.1f} s, all go on {time.monotonic() - promoted:.1f} s later")
            over.set()
            for loop in loops[:-1]:
                loop.cancel()
            results = await asyncio.gather(*loops, return_exceptions=True)
    assert [error for error in results if isinstance(error, Exception)] == []


@pytest.mark.integration
async def test_children_of_a_supervisor_and_a_stream_leave_a_primary_that_hangs_for_its_replica(
    failover: Failover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "namespace", failover.namespace)
    taken: dict[str, float] = {}
    ran: dict[str, float] = {}

    async def take() -> None:
        async with app.queue("hand").stream(limit=2) as leases:
            async for lease in leases:
                async with lease:
                    taken[lease.job.id] = time.monotonic()

    async def run_one_more() -> None:
        """A job for a child and one for the stream, sent until the server has them."""
        names = f"child-{len(ran)}", f"hand-{len(ran)}"
        while True:
            with suppress(Unavailable):
                job = await quick.using(id=names[0]).enqueue(1)
                await quick.using(id=names[1], queue="hand").enqueue(1)
                break
        assert await job.result() == 1
        ran[names[0]] = time.monotonic()
        await eventually(lambda: names[1] in taken, within=30)

    async with crew_at(tmp_path, failover.url) as crew:
        app, quick = crew.app, crew.tasks.quick
        supervisor = await crew.started("-p", "2", "-c", "4", "-q", "default", children=2, lease="3s")
        taking = asyncio.ensure_future(take())
        await run_one_more()
        children = tree(supervisor.pid)
        with hanging(failover.primary):
            await asyncio.to_thread(wait_for, failover.promoted, timeout=30)
            promoted = time.monotonic()
            async with asyncio.timeout(30):
                await run_one_more()
            late = ran["child-1"] - promoted, taken["hand-1"] - promoted
            print(f"after the promotion a child went on in {late[0]:.1f} s, a stream in {late[1]:.1f} s")
            assert max(late) < IDLE_AFTER_PROMOTION
            assert set(children) <= set(tree(supervisor.pid))
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            assert await crew.stop(supervisor, within=30) == 0
    assert "another takes its place" not in crew.log()


@pytest.mark.parametrize("deadline", [0.7, 1.5])
@pytest.mark.parametrize("blocking", [False, True])
async def test_unavailable_comes_at_the_deadline_and_not_before(deadline: float, blocking: bool) -> None:
    with running(Server("--appendonly", "no")) as server:
        app = Penstock(namespace(), url=server.url, deadline=deadline)

        @app.task
        async def nothing() -> None: ...

        async def send() -> float:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await (asyncio.to_thread(nothing.enqueue_sync) if blocking else nothing.enqueue())
            return time.monotonic() - began

        async with app:
            await nothing.enqueue()
            with hanging(server):
                assert deadline - 0.1 < await send() < deadline + 2
            server.kill()
            assert deadline - 0.1 < await send() < deadline + 2


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_server_that_is_demoted_is_unavailable_and_used_again_when_it_is_promoted(blocking: bool) -> None:
    with running(Server("--appendonly", "no")) as server:
        app = Penstock(namespace(), url=server.url, deadline=1.5)

        @app.task
        async def nothing() -> None: ...

        async def send() -> Any:
            return await (asyncio.to_thread(nothing.enqueue_sync) if blocking else nothing.enqueue())

        async with app:
            await send()
            _replicate(server, "127.0.0.1", 1)
            began = time.monotonic()
            with pytest.raises(Unavailable, match=r"No primary|READONLY|read only"):
                await send()
            assert time.monotonic() - began > 1.4
            waiting = asyncio.ensure_future(send())
            _replicate(server, "NO", "ONE")
            assert (await waiting).created


async def test_an_app_whose_server_stays_a_replica_from_the_start_is_told_which_url_to_use() -> None:
    with running(Server("--appendonly", "no")) as primary, running(Server("--appendonly", "no")) as server:
        _replicate(server, "127.0.0.1", primary.port)
        with pytest.raises(UnsuitableServer, match=f"use the URL of its master, 127.0.0.1:{primary.port}"):
            async with Penstock(namespace(), url=server.url, deadline=1):
                pass


async def test_a_waiting_client_and_an_idle_worker_follow_an_address_to_another_server() -> None:
    """As with DNS or a proxy: the address is the same, what answers there is not."""
    with (
        running(Server("--appendonly", "no")) as first,
        running(Server("--appendonly", "no")) as second,
        proxied(first.port) as proxy,
    ):
        app = Penstock(namespace(), url=proxy.url, deadline="20s")

        @app.task
        async def echo(x: int) -> int:
            return x

        async with app, app.worker(lease="3s", grace="1s"):
            assert await (await echo.enqueue(1)).result() == 1
            with hanging(first):
                proxy.target = second.port
                began = time.monotonic()
                assert await (await echo.enqueue(2)).result() == 2
                assert time.monotonic() - began < 8
                print(f"{time.monotonic() - began:.1f} s")
