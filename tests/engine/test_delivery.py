"""Delivery at full size: ten thousand jobs each run once, and fifty processes create one job of an id."""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from penstock.engine.engine import PAGE, Engine, NewJob
from penstock.engine.read.views import Views
from tests.engine.factories import happened, new_job, states
from tests.engine.processes import run

JOBS, PRIORITIES, PROCESSES = 10_000, 100, 50


@pytest.mark.parametrize("clients", [1, 4])
async def test_ten_thousand_jobs_each_run_once_and_in_order(real_engine: Engine, url: str, clients: int) -> None:
    order = list(range(JOBS))
    random.Random(clients).shuffle(order)
    jobs = [new_job(f"j{number}", priority=number % PRIORITIES) for number in order]
    enqueueing = await _enqueue(real_engine, jobs)
    began = time.monotonic()
    answers = await asyncio.to_thread(run, "work", real_engine, url, clients)
    took = max(client["seconds"] for client in answers)
    print(
        f"\n{url.partition(':')[0]}, {clients} clients: enqueued {JOBS / enqueueing:,.0f}/s, leased and completed "
        f"{JOBS / took:,.0f}/s; {time.monotonic() - began:.1f} s with the start of the processes"
    )
    ran = [job_id for client in answers for job_id in client["ran"]]
    assert len(ran) == JOBS
    assert set(ran) == {job.id for job in jobs}
    place = {job.id: (job.header.priority, arrival) for arrival, job in enumerate(jobs)}
    for client in answers:
        places = [place[job_id] for job_id in client["ran"]]
        assert places == sorted(places)
    assert set((await states(real_engine)).values()) == {"done"}
    assert await Views(real_engine).counts() == {"default": {"ready": 0, "running": 0, "done": JOBS}}
    starts = [header.starts async for _, header in Views(real_engine).headers()]
    assert starts == [1] * JOBS


async def _enqueue(engine: Engine, jobs: Sequence[NewJob]) -> float:
    began = time.monotonic()
    for start in range(0, len(jobs), PAGE):
        placed = await engine.enqueue(jobs[start : start + PAGE])
        assert {answer.word for answer in placed} == {"created"}
    return time.monotonic() - began


async def test_the_same_id_or_a_taken_unique_key_from_fifty_processes_at_once_makes_one_job(
    real_engine: Engine, url: str
) -> None:
    answers = await asyncio.to_thread(run, "race", real_engine, url, PROCESSES)
    assert len(answers) == PROCESSES
    words = sorted(client["same"][0] for client in answers)
    assert words == ["created"] + ["exists"] * (PROCESSES - 1)
    assert {client["same"][1] for client in answers} == {"same"}
    (first,) = [client["number"] for client in answers if client["same"][0] == "created"]
    record = await Views(real_engine).job("same")
    assert record is not None
    assert (record.payload, record.header.nonce) == (str(first).encode(), f"n{first}")

    assert sorted(client["unique"][0] for client in answers) == ["created"] + ["unique"] * (PROCESSES - 1)
    (holder,) = {client["unique"][1] for client in answers}
    (winner,) = [client["number"] for client in answers if client["unique"][0] == "created"]
    assert holder == f"mine-{winner}"
    assert await states(real_engine) == {"same": "ready", holder: "ready"}
    assert len(await happened(real_engine)) == 2
