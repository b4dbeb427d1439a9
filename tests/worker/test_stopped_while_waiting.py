"""A worker that stops cuts its jobs short, also where the worker itself waits for something on behalf of a job."""

import asyncio

import pytest

from penstock import Penstock, current_job
from penstock.api import context
from penstock.worker import worker as worker_module
from penstock.worker.worker import Worker
from tests.app_helpers import eventually, own_app
from tests.conftest import namespace
from tests.proxy import Proxy, proxied
from tests.servers import Server


async def test_a_job_that_returned_is_done_though_its_worker_stops_while_its_progress_is_sent(
    single: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SETTLE_TIMEOUT", 30)
    monkeypatch.setattr(context, "PROGRESS_INTERVAL", 60)  # so the second report is kept until the end
    returned = asyncio.Event()
    with proxied(single.port) as proxy:
        async with own_app(single, namespace()) as app, Penstock(app.name, url=proxy.url) as behind:

            @behind.task(name="work", retries=0)
            async def work() -> int:
                await current_job().progress(1, 2)
                proxy.stall("requests")
                await current_job().progress(2, 2)
                returned.set()
                return 7

            async with behind.worker(grace="0s") as worker:
                job = await app.task(name="work", retries=0)(work.function).enqueue()
                await returned.wait()
                stopped = asyncio.create_task(_flow_when_stopped(worker, proxy))
            await stopped
            assert (await job.status()).state == "done"
            assert await job.result() == 7


async def test_a_job_of_an_unknown_task_goes_back_though_its_worker_stops_while_it_asks_who_knows_it(
    single: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SETTLE_TIMEOUT", 30)
    with proxied(single.port) as proxy:
        async with own_app(single, namespace()) as app, Penstock(app.name, url=proxy.url) as behind:

            @app.task
            async def unknown() -> None: ...

            job = await unknown.enqueue()
            proxy.hang(b"HGETALL")  # it asks what the other workers know
            async with behind.worker(grace="0s"):
                await eventually(lambda: proxy.has_hung)
            status = await job.status()
            assert (status.state, status.attempts) == ("ready", ())


async def _flow_when_stopped(worker: Worker, proxy: Proxy) -> None:
    await eventually(lambda: not worker._slots.running)
    proxy.flow()
