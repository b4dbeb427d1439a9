"""`/metrics`: its counters equal a ledger that the jobs themselves kept."""

import asyncio
import shutil
import subprocess
from collections import Counter
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import Penstock, Snooze
from penstock.engine.read.statistics import Statistic
from penstock.metrics.counters import Counters
from tests.app_helpers import eventually
from tests.http.harness import serving

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(client: httpx.AsyncClient) -> Values:
    response = await client.get("/metrics")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = list(text_string_to_metric_families(response.text))
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(values: Values, name: str, **labels: str) -> float:
    return values.get((f"penstock_{name}", frozenset(labels.items())), 0)


async def test_counters_equal_an_independent_ledger_after_10_000_mixed_jobs(app: Penstock) -> None:
    ledger: Counter[str] = Counter()

    @app.task(name="mixed", queue="mixed", retries=1, backoff=[0])  # every second one with a lock is held by it
    async def mixed(number: int) -> None:
        ledger["lease"] += 1
        if number % 10 == 0:
            ledger["retry" if ledger[f"first {number}"] == 0 else "bury"] += 1
            ledger[f"first {number}"] += 1
            raise ValueError(number)
        if number % 10 == 1 and not ledger[f"first {number}"]:
            ledger[f"first {number}"] += 1
            ledger["snooze"] += 1
            raise Snooze(0)
        ledger["complete"] += 1

    async with serving(app) as client:
        before = await scrape(client)
        locked = {number: f"lock {number // 20}" for number in range(3, 10_000, 10)}
        tasks = (mixed.using(lock=locked[number]) if number in locked else mixed for number in range(10_000))
        jobs = await app.enqueue_many(task.call(number) for number, task in enumerate(tasks))
        words = [await job.cancel() for job in jobs[2::100]]
        ledger["cancel"] += words.count("cancelled")
        ledger.update(await _lost(app))
        async with app.worker(concurrency=200):
            await eventually(lambda: _have_ended(app), within=100)
        after = await scrape(client)
        again = await scrape(client)
    verbs = ("lease", "complete", "retry", "bury", "snooze", "cancel", "reap")
    counted = {verb: value(after, "transitions_total", queue="mixed", verb=verb) for verb in verbs}
    assert counted == {verb: ledger[verb] for verb in verbs}
    assert value(after, "transitions_total", queue="mixed", verb="enqueue") == 10_000
    assert value(before, "transitions_total", queue="mixed", verb="enqueue") == 0
    assert value(again, "transitions_total", queue="mixed", verb="lease") == ledger["lease"]
    states = {state: value(after, "queue_jobs", queue="mixed", state=state) for state in ("done", "dead", "cancelled")}
    assert states == {"done": ledger["complete"], "dead": ledger["bury"], "cancelled": 100}
    assert value(after, "stale_total", queue="mixed") == ledger["stale"]
    numbers = {"wait_seconds": ledger["lease"], "run_seconds": ledger["lease"], "lane_wait_seconds": len(locked) // 2}
    for name, number in numbers.items():
        assert value(after, f"{name}_count", queue="mixed") == number
        assert value(after, f"{name}_bucket", queue="mixed", le="+Inf") == number
        assert value(after, f"{name}_sum", queue="mixed") >= 0


async def _lost(app: Penstock) -> dict[str, int]:
    """A worker takes jobs, dies before it starts them, and settles them afterwards nevertheless."""
    engine = app.client.engine
    await engine.register("lost", 60_000)
    leased = (await engine.lease("lost", 1, want=2)).leases  # none with a lock
    await engine.reap_worker("lost", [], 60_000)
    words = await engine.complete("lost", [(lease.id, 1, b"") for lease in leased])
    return {"lease": len(leased), "reap": len(leased), "stale": words.count("stale")}


async def _have_ended(app: Penstock) -> bool:
    counts = (await app.client.views.counts())["mixed"]
    return sum(counts.get(state, 0) for state in ("done", "dead", "cancelled")) == 10_000


async def test_depth_age_pauses_limits_workers_and_requests_are_shown(app: Penstock, client: httpx.AsyncClient) -> None:
    @app.task(name="wait", queue="odd-queue")
    async def wait() -> None: ...

    await wait.using(priority=1).enqueue()
    await wait.using(priority=99).enqueue()
    await wait.using(delay="1h").enqueue()
    await app.queue("odd-queue").pause()
    await app.queue("odd-queue").set(limit=7)
    await client.get("/api/v1/queues/odd-queue")
    await client.get("/api/v1/queues/nothing")
    await client.get("/no/such/path")
    async with app.worker(concurrency=5):
        samples = await scrape(client)
    assert value(samples, "queue_jobs", queue="odd-queue", state="ready") == 2
    assert value(samples, "queue_jobs", queue="odd-queue", state="scheduled") == 1
    assert 0 < value(samples, "oldest_ready_seconds", queue="odd-queue") < 60
    assert (value(samples, "queue_paused", queue="odd-queue"), value(samples, "queue_limit", queue="odd-queue")) == (
        1,
        7,
    )
    assert (value(samples, "workers"), value(samples, "worker_slots")) == (1, 5)
    route = {"method": "GET", "route": "/api/v1/queues/{name}"}
    assert value(samples, "http_requests_total", **route, status="200") == 1
    assert value(samples, "http_requests_total", **route, status="404") == 1
    assert value(samples, "http_requests_total", method="", route="", status="404") == 1
    assert value(samples, "http_request_seconds_bucket", **route, le="+Inf") == 2


async def test_waits_and_runs_fall_into_their_ranges(app: Penstock, client: httpx.AsyncClient) -> None:
    @app.task(name="nap", queue="naps", lock="one")
    async def nap() -> None:
        await asyncio.sleep(0.06)

    await nap.enqueue()
    await nap.enqueue()
    await asyncio.sleep(0.06)
    async with app.worker(concurrency=5):
        await eventually(lambda: _are_done(app, "naps", 2), within=20)
    samples = await scrape(client)
    for name, most in (("wait", 1), ("run", 0), ("lane_wait", 0)):
        buckets = {
            float(dict(labels)["le"]): number
            for (which, labels), number in samples.items()
            if which == f"penstock_{name}_seconds_bucket" and ("queue", "naps") in labels
        }
        assert len(buckets) == 13
        assert list(buckets.values()) == sorted(buckets.values())
        assert buckets[0.05] <= most, name  # one of them waited in no line: it was held until it started
        assert buckets[float("inf")] == {"wait": 2, "run": 2, "lane_wait": 1}[name]
        assert value(samples, f"{name}_seconds_sum", queue="naps") >= 0.06


async def _are_done(app: Penstock, queue: str, number: int) -> bool:
    return (await app.client.views.counts())[queue].get("done", 0) == number


async def test_there_is_a_bounded_number_of_queues(app: Penstock, client: httpx.AsyncClient) -> None:
    @app.task(name="wait")
    async def wait() -> None: ...

    await app.enqueue_many(wait.using(queue=f"q{number:03d}").call() for number in range(150))
    samples = await scrape(client)
    labels = {dict(names)["queue"] for (name, names) in samples if name == "penstock_queue_jobs"}
    assert len(labels) == 101
    total = sum(number for (name, names), number in samples.items() if ("state", "ready") in names)
    assert total == 150


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_promtool_accepts_the_metrics(app: Penstock, client: httpx.AsyncClient) -> None:
    @app.task(name="add", lock="one")
    async def add() -> None: ...

    await add.enqueue()
    job = await add.enqueue()
    await app.run_until_idle()
    await app.client.engine.complete("nobody", [(job.id, 1, b"")])
    await client.get("/api/v1/queues")
    text = (await client.get("/metrics")).content
    assert b"penstock_stale_total{" in text
    command = ["promtool", "check", "metrics"]
    checked = await asyncio.to_thread(subprocess.run, command, input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_totals_only_grow_though_minutes_are_forgotten() -> None:
    totals, steps = Counters(), list[Any]()
    for sums in (
        [Statistic(1, "q", "lease", 5)],
        [Statistic(1, "q", "lease", 7), Statistic(2, "q", "lease", 1)],
        [Statistic(2, "q", "lease", 3)],
        [Statistic(2, "q", "lease", 3), Statistic(3, "q", "lease", 4)],
        [],
    ):
        totals.add(sums)
        steps.append(totals.by_queue["q", "lease"])
    assert steps == [5, 8, 10, 14, 14]
