"""The lines that jobs write: kept with the job, while it runs and afterwards."""

import asyncio
import logging
import subprocess
import sys
import time
from functools import partial

import pytest

from penstock import BadOption, Penstock, current_job
from penstock.engine.read.views import LogLine


async def test_lines_that_a_job_logs_are_kept_with_it(app: Penstock) -> None:
    @app.task(name="chat", retries=1, backoff=[0])
    async def chat(fails: bool) -> None:
        current_job().log("hello")
        logging.getLogger("shop").warning("careful, %s", "please")
        logging.getLogger("shop").debug("not this")
        if fails and current_job().attempt == 1:
            raise ValueError("no")

    job, other = await chat.enqueue(fails=True), await chat.enqueue(fails=False)
    await app.run_until_idle()
    lines = await job.log()
    mine = [(line.attempt, line.level, line.text) for line in lines if "attempt" not in line.text]
    said = (("info", "hello"), ("warning", "careful, please"))
    assert mine == [(attempt, *line) for attempt in (1, 2) for line in said]
    assert any("attempt 1 failed" in line.text for line in lines)
    assert [line.text for line in await other.log()] == ["hello", "careful, please"]
    assert abs(lines[0].at / 1000 - time.time()) < 60


async def test_lines_of_threads_are_kept_too_and_long_ones_cut(app: Penstock) -> None:
    @app.task(name="chat")
    def chat() -> None:
        for number in range(300):
            current_job().log(f"{number} " + "x" * 5_000)

    job = await chat.enqueue()
    await app.run_until_idle()
    lines = await job.log()
    assert 1 <= len(lines) <= 10
    assert lines[-1].text.startswith("299 ")
    assert len(lines[-1].text) == 2_000


async def test_lines_arrive_while_the_job_runs(app: Penstock) -> None:
    go = asyncio.Event()

    @app.task(name="chat")
    async def chat() -> None:
        current_job().log("first")
        await go.wait()

    job = await chat.enqueue()
    async with app.worker(), asyncio.timeout(30):
        lines_seen: list[LogLine] = []
        while not lines_seen:
            await asyncio.sleep(0.02)
            lines_seen = await job.log()
        assert lines_seen[0].text == "first"
        go.set()


async def test_lines_logged_outside_of_jobs_are_not_kept_and_capturing_ends_with_the_worker(app: Penstock) -> None:
    handlers, factory = list(logging.getLogger().handlers), logging.getLogRecordFactory()
    async with app.worker():
        assert logging.getLogRecordFactory() is not factory
        logging.getLogger("shop").error("outside")
        assert logging.getLogger().handlers == handlers
        async with app.worker():
            pass
    assert logging.getLogRecordFactory() is factory


async def test_a_log_record_factory_set_meanwhile_stays_in_use(app: Penstock) -> None:
    factory = logging.getLogRecordFactory()
    try:
        async with app.worker():
            ours = logging.getLogRecordFactory()
            logging.setLogRecordFactory(partial(ours))
            theirs = logging.getLogRecordFactory()
            assert logging.makeLogRecord({"msg": "from elsewhere"}).msg == "from elsewhere"
        assert logging.getLogRecordFactory() is theirs
        assert logging.makeLogRecord({"msg": "later"}).msg == "later"
    finally:
        logging.setLogRecordFactory(factory)


PROGRAM = """
import asyncio, logging, sys
from penstock import Penstock

app = Penstock(sys.argv[1], url=sys.argv[2])

@app.task(name="fails", retries=0)
async def fails() -> None:
    raise ValueError("boom")

async def main() -> None:
    await fails.enqueue()
    async with app.worker() as worker:
        logging.getLogger("shop").warning("as without a worker")
        await worker.until_idle()
        if sys.argv[3:]:
            logging.basicConfig(level=logging.INFO, format="mine %(message)s")
            logging.getLogger("shop").info("as it was set up")
    await app.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize("sets_up", [False, True])
def test_a_program_with_a_worker_logs_as_it_does_without(app: Penstock, url: str, sets_up: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, app.name, url, *(["basicConfig"] if sets_up else [])]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr
    assert "as without a worker" in printed
    assert "boom" in printed
    assert ("mine as it was set up" in printed) == sets_up


async def test_capturing_can_be_turned_off(url: str, app: Penstock) -> None:
    quiet = Penstock(app.name, url=url, job_log="off")

    @quiet.task(name="chat")
    async def chat() -> None:
        logging.getLogger("shop").error("not kept")
        current_job().log("kept")

    job = await chat.enqueue()
    await quiet.run_until_idle()
    assert [line.text for line in await job.log()] == ["kept"]
    await quiet.aclose()
    with pytest.raises(BadOption, match="job_log"):
        Penstock("x", job_log="loud")
