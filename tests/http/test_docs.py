"""Every curl line of the page works as it stands."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.http.access import Access
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route_table import all_routes
from tests.conftest import namespace
from tests.http.processes import TASKS, serve
from tests.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
MORE = TASKS + '\n\n@app.task\nasync def send(user: int, subject: str = "") -> None: ...\n'
MORE += "\n\n@app.task\nasync def report(status: dict[str, object]) -> None: ...\n"


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


async def _schedule(app: Penstock) -> None:
    """As a worker would make it known."""

    @app.task(name="tick")
    async def tick() -> None: ...

    async with app:
        await app.schedule("hourly").set(tick.call(), every="1h")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_curl_line_works_as_it_stands(tmp_path: Path, single: Server) -> None:
    name = namespace()
    with serve(tmp_path, single.url, name, "tasks:app", "--open", tasks=MORE) as process:
        asyncio.run(_schedule(Penstock(name, url=single.url)))
        for line in commands():
            asked = line.replace("localhost:8000", f"127.0.0.1:{process.port}")
            asked = asked.replace("curl ", "curl -sS --fail-with-body ", 1)
            done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_every_route_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    app = Penstock("unused", url="redis://127.0.0.1:1")
    for route in all_routes(app.program, Access(), RequestMetrics()):
        pattern = re.sub(r"\\\{\w+\\\}", r"[\\w:%-]+", re.escape(route.path))
        assert re.search(pattern + r"(?![\w/{])", text), route.path
