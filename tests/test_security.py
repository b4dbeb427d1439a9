"""What the pages about security say: each line has its test, and nothing that is stored is ever run as code."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.engine.engine import Retention
from penstock.model.backoff import MAX_DELAYS
from penstock.model.codec import MAX_BYTES
from penstock.model.lanes import MAX_LANES
from penstock.model.payload_codec import MAX_INFLATED
from penstock.worker.outcome import MAX_ERROR_MESSAGE, MAX_TRACEBACK
from tests.conftest import namespace
from tests.servers import Server

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
SOURCE = ROOT / "src" / "penstock"


def test_each_test_that_the_list_names_is_there() -> None:
    named = re.findall(r"`([\w/]+)::(\w+)`", (ROOT / "docs" / "security.md").read_text("utf-8"))
    assert len(named) > 15
    for file, test in named:
        assert f"def {test}(" in (TESTS / f"{file}.py").read_text("utf-8"), f"{file}::{test}"


def test_the_limits_are_those_of_the_code() -> None:
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    lua = (SOURCE / "engine" / "lua" / "verbs" / "log.lua").read_text("utf-8")
    lines, size = (int(re.findall(rf"local {name} = (\d+)", lua)[0]) for name in ("MAX_LINES", "MAX_BYTES"))
    retention = Retention()
    for text in (
        f"| result | {MAX_BYTES // 2**20} MiB |",
        f"{MAX_LANES} locks and lanes, {MAX_DELAYS} delays",
        f"{MAX_ERROR_MESSAGE:,} characters of its message, {MAX_TRACEBACK:,} of its traceback",
        f"{lines} lines, {size // 1024} KiB",
        f"| decompressed value | {MAX_INFLATED // 2**20} MiB |",
        f"{retention.finished:,} and {retention.dead:,} are remembered",
    ):
        assert text in page, text


def test_nothing_that_comes_from_the_server_can_be_run_as_code() -> None:
    """No pickle, no eval, no shell: names and data only."""
    modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = {alias.name.partition(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()
            if isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"eval", "exec", "compile", "os.system", "__import__"}, f"{file}:{node.lineno}"
                assert not any(keyword.arg == "shell" for keyword in node.keywords), f"{file}:{node.lineno}"
            assert names.isdisjoint(modules), f"{file}: {names & modules}"


CONFINED = """
mount --make-rprivate /
mount -o remount,ro,bind /
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
PROGRAM = """
import os, subprocess
from penstock import Penstock

app = Penstock(os.environ["NAMESPACE"])


def refused():
    try:
        open("written", "w")
    except OSError as error:
        return str(error)


@app.task
async def look() -> list:
    capabilities = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "NoNewPrivs"))]
    return [*capabilities, refused()]


@app.task(executor="process")
def apart() -> str:
    return refused()
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))), reason="needs root, unshare and setpriv"
)
async def test_a_worker_needs_no_capabilities_and_no_file_that_it_may_write_to(tmp_path: Path, single: Server) -> None:
    (tmp_path / "tasks.py").write_text(PROGRAM)
    name = namespace()
    app = Penstock(name, url=single.url)

    @app.task(name="tasks:look")
    async def look() -> list[str]:
        return []

    @app.task(name="tasks:apart")
    async def apart() -> str:
        return ""

    async with app:
        jobs = await look.enqueue(), await apart.enqueue()
        worker = ["worker", "tasks:app", "--burst", "-p", "2"]
        done = subprocess.run(  # noqa: ASYNC221  (nothing else runs meanwhile)
            ["unshare", "--mount", "sh", "-euc", CONFINED, "sh", sys.executable, "-m", "penstock.cli", *worker],
            cwd=tmp_path,
            env=os.environ | {"PENSTOCK_URL": single.url, "NAMESPACE": name, "PENSTOCK_ENV": "production"},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        if "mount" in done.stderr and done.returncode == 1:
            pytest.skip(f"no mounts here: {done.stderr}")
        assert done.returncode == 0, done.stderr
        capabilities, privileges, written = await jobs[0].result(timeout=1)
        assert (int(capabilities, 16), privileges) == (0, "1")
        assert "Read-only file system" in written
        assert "Read-only file system" in await jobs[1].result(timeout=1)
