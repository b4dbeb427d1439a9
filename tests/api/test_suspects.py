"""Suspects in a worker inside a program."""

from penstock import Penstock


async def test_a_suspect_that_no_other_process_can_import_runs_among_the_others(app: Penstock) -> None:
    @app.task
    async def local(n: int) -> int:
        return n

    job, engine = await local.enqueue(7), app.client.engine
    for name in ("lost-1", "lost-2"):
        await engine.register(name, 60_000, "{}", ["*"])
        await engine.lease(name, 1, queues=["*"], want=1, answered=0)
        await engine.reap_worker(name, [job.id], 60_000)
    async with app.worker(concurrency=2):
        assert await job.result(timeout=30) == 7
    assert [attempt.outcome for attempt in (await job.status()).attempts] == ["crash", "crash"]
