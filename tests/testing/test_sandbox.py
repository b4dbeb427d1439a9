"""A sandbox: what an app does in a test happens on the test's server and leaves nothing behind."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import JobFailed, Lane, Penstock, PenstockError, current_job
from penstock.testing import Sandbox
from penstock.testing.server import default_url
from tests.servers import Server, wait_for


def test_the_app_of_the_program_runs_its_jobs_in_the_sandbox_and_nowhere_else(app: Penstock, single: Server) -> None:
    @app.task
    def double(number: int) -> int:
        return number * 2

    with Sandbox(app, url=single.url) as sandbox:
        job = double.enqueue_sync(21)
        sandbox.run_until_idle_sync()
        assert job.result_sync(timeout=0) == 42
        name = sandbox.app.client.engine.keys.namespace
        assert single.client().keys(f"*{name}*")
    assert single.client().keys(f"*{name}*") == []
    with pytest.raises(PenstockError):
        double.enqueue_sync(21)


def test_two_sandboxes_see_nothing_of_each_other(app: Penstock, single: Server) -> None:
    @app.task
    def work() -> None: ...

    with Sandbox(app, url=single.url) as inner:
        work.using(id="same").enqueue_sync()
        with Sandbox(app, url=single.url) as other:
            other.assert_not_enqueued()
            assert work.using(id="same").enqueue_sync().created
        inner.assert_enqueued(work, times=1)


async def test_async_tests_await_it(app: Penstock, single: Server) -> None:
    @app.task
    async def outer(number: int) -> int:
        return await (await inner.enqueue(number)).result(timeout=30)

    @app.task
    def inner(number: int) -> int:
        return number + current_job().attempt

    async with Sandbox(app, url=single.url) as sandbox:
        job = await outer.enqueue(1)
        await sandbox.run_until_idle()
        assert await job.result(timeout=0) == 2


async def test_blocking_twins_are_refused_on_a_loop(sandbox: Sandbox) -> None:
    with pytest.raises(PenstockError, match=r"await run_until_idle\(\)"):
        sandbox.run_until_idle_sync()
    with pytest.raises(PenstockError, match=r"await run_for\(\)"):
        sandbox.run_for_sync("1s")


def test_methods_that_must_be_awaited_are_refused_in_blocking_code(sandbox: Sandbox) -> None:
    with pytest.raises(PenstockError, match=r"use run_until_idle_sync\(\)"):
        sandbox.run_until_idle()  # type: ignore[unused-coroutine]
    with pytest.raises(PenstockError, match=r"use run_for_sync\(\)"):
        sandbox.run_for("1s")  # type: ignore[unused-coroutine]


def test_a_sandbox_that_is_not_open_says_so(app: Penstock, single: Server) -> None:
    sandbox = Sandbox(app, url=single.url)
    with pytest.raises(PenstockError, match="not open"):
        sandbox.enqueued()
    with sandbox, pytest.raises(PenstockError, match="open already"):
        sandbox.__enter__()


def test_a_sandbox_is_idle_although_a_queue_is_paused_or_a_rate_is_used_up(app: Penstock, sandbox: Sandbox) -> None:
    ran: list[str] = []

    @app.task(lane=Lane("slow", rate="1/s", burst=1))
    def slow(name: str) -> None:
        ran.append(name)

    app.enqueue_many_sync(slow.call(name) for name in "abc")
    slow.using(queue="mail").enqueue_sync("paused")
    asyncio.run(app.queue("mail").pause())
    sandbox.run_until_idle_sync()
    assert ran == ["a"]
    asyncio.run(app.run_until_idle())
    assert ran == ["a"]
    sandbox.run_for_sync("10s")
    assert ran == ["a", "b", "c"]


def test_run_until_idle_works_off_only_the_named_queues(app: Penstock, sandbox: Sandbox) -> None:
    ran: list[str] = []

    @app.task
    def work(name: str) -> None:
        ran.append(name)

    work.using(queue="mail").enqueue_sync("mail")
    work.enqueue_sync("default")
    sandbox.run_until_idle_sync(queues="mail")
    assert ran == ["mail"]


def test_a_sandbox_without_a_url_starts_a_server_that_ends_with_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from penstock import Penstock\n"
        "from penstock.testing import Sandbox\n"
        "from penstock.testing.server import default_url\n"
        "app = Penstock('shop')\n"
        "@app.task\n"
        "def add(a: int, b: int) -> int: return a + b\n"
        "with Sandbox(app) as sandbox:\n"
        "    job = add.enqueue_sync(1, 2)\n"
        "    sandbox.run_until_idle_sync()\n"
        "    print(job.result_sync(timeout=0))\n"
        "print(default_url())\n"
    )
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=tmp_path,
        env=ours | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    result, url = done.stdout.split()
    assert result == "3"
    wait_for(lambda: not Path(url.removeprefix("unix://")).exists())
    assert list(tmp_path.glob("penstock-testing-*")) == []
    assert not (tmp_path / ".penstock").exists()


def test_a_job_that_fails_says_why(app: Penstock, sandbox: Sandbox) -> None:
    @app.task(retries=0)
    def fail() -> None:
        raise ValueError("no")

    job = fail.enqueue_sync()
    sandbox.run_until_idle_sync()
    with pytest.raises(JobFailed, match="ValueError: no"):
        job.result_sync(timeout=0)


def test_the_environment_may_name_the_server(app: Penstock, single: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_URL", single.url)
    default_url.cache_clear()
    try:
        assert Penstock("made-meanwhile").name
        with Sandbox(app):
            assert str(app.client.endpoint) == single.url
    finally:
        default_url.cache_clear()
