"""The pytest plugin, as a project's own tests use it: blocking, pytest-asyncio and anyio, alone and under xdist."""

from pathlib import Path

import pytest

from tests.servers import wait_for

pytest_plugins = ["pytester"]

SHOP = """
from penstock import Penstock
app = Penstock("shop", url="redis://127.0.0.1:1")
sent = []

@app.task
def send(user: int, subject: str = "hi") -> str:
    sent.append((user, subject))
    return f"{subject} {user}"
"""
TESTS = """
import asyncio, os, pathlib
import pytest
from shop import app, send, sent

def test_blocking(penstock):
    job = send.enqueue_sync(1)
    penstock.assert_enqueued(send.call(1))
    penstock.run_until_idle_sync()
    assert job.result_sync(timeout=0) == "hi 1"

def test_nothing_is_left(penstock):
    penstock.assert_not_enqueued()

@pytest.mark.penstock(inline=True)
def test_inline(penstock):
    assert send.enqueue_sync(2).result_sync(timeout=0) == "hi 2"

@pytest.mark.asyncio
async def test_with_pytest_asyncio(penstock):
    job = await send.using(delay="1h").enqueue(3)
    penstock.clock.advance("1h")
    await penstock.run_until_idle()
    assert await job.result(timeout=0) == "hi 3"

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_with_anyio(penstock, anyio_backend):
    async with app.worker():
        assert await (await send.enqueue(4)).result(timeout=30) == "hi 4"

def test_fails(penstock):
    send.enqueue_sync(5)
    penstock.assert_enqueued(send.call(6))

@pytest.mark.parametrize("number", range(4))
def test_url(penstock_url, number):
    (pathlib.Path(__file__).parent / f"url-{os.getpid()}").write_text(penstock_url)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("PENSTOCK_TEST_URL", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # by name: some of the others take seconds to load
    pytester.makepyprojecttoml(
        '[tool.penstock]\napp = "shop:app"\n'
        '[tool.pytest.ini_options]\nfilterwarnings = ["error"]\nasyncio_mode = "strict"\n'
        'asyncio_default_fixture_loop_scope = "function"\npythonpath = ["."]\n'
        'addopts = "--strict-markers -p no:cacheprovider -p penstock -p asyncio -p anyio"\n'
    )
    pytester.makepyfile(shop=SHOP)
    return pytester


def test_a_projects_tests_run_on_one_server_which_ends_with_them(project: pytest.Pytester) -> None:
    project.makepyfile(test_shop=TESTS)
    result = project.runpytest_subprocess("-p", "xdist", "-n", "2", "--basetemp", str(project.path / "tmp"))
    result.assert_outcomes(passed=9, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*> *penstock.assert_enqueued(send.call(6))",  # the test's own line, none of ours
            "*AssertionError: expected to be enqueued: shop:send(user=6, subject='hi')",
            "*what was enqueued:",
            "*  shop:send(user=5, subject='hi')",
        ]
    )
    (url,) = {file.read_text() for file in project.path.glob("url-*")}
    wait_for(lambda: not Path(url.removeprefix("unix://")).exists())


def test_a_project_that_names_no_app_is_told_how(project: pytest.Pytester) -> None:
    project.makepyprojecttoml('[tool.pytest.ini_options]\naddopts = "-p penstock"\n')
    project.makepyfile("def test_it(penstock): pass")
    result = project.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*which app is to be tested? Name it in pyproject.toml*penstock_app*"])


def test_a_project_that_does_not_use_the_plugin_imports_nothing_of_it(project: pytest.Pytester) -> None:
    project.makepyfile(
        "import sys\n"
        "def test_it():\n"
        "    ours = [name for name in sys.modules if name.startswith('penstock.')]\n"
        "    assert ours == ['penstock.pytest_plugin']\n"
        "    assert 'redis' not in sys.modules\n"
    )
    project.runpytest_subprocess().assert_outcomes(passed=1)
