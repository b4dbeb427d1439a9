"""The examples run as they stand, and do what they say."""

import os
import subprocess
import sys
from pathlib import Path

from tests.servers import Server

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_each_order_is_billed_once_though_a_worker_is_killed_in_the_middle(tmp_path: Path, single: Server) -> None:
    environment = os.environ | {"ORDERS_FOLDER": str(tmp_path), "PENSTOCK_URL": single.url}
    program = [sys.executable, str(EXAMPLES / "orders.py")]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert found.stdout == "30 orders, 30 of them billed, 30 bills\n", found.stderr
    assert found.returncode == 0


def test_each_request_is_split_limited_and_announced_once_by_a_listener_elsewhere(
    tmp_path: Path, single: Server
) -> None:
    environment = os.environ | {"REQUESTS_FOLDER": str(tmp_path), "PENSTOCK_URL": single.url}
    (tmp_path / "requests.txt").write_text("# a comment\n2:a:b:c:d:e\n\n1:x:y  # and another\n5:one\n")
    program = [sys.executable, str(EXAMPLES / "requests.py"), str(tmp_path / "requests.txt")]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=110)
    said = [f"request {n}: {m} of {m} parts done" for n, m in ((2, 5), (4, 2), (5, 1))]
    assert sorted(found.stdout.splitlines()) == said, found.stderr
    assert found.returncode == 0


def test_a_web_service_loses_nothing_though_a_worker_and_then_everything_is_killed(tmp_path: Path) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment = ours | {"WEB_SERVICE_FOLDER": str(tmp_path)}
    program = [sys.executable, str(EXAMPLES / "web_service.py")]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert found.stdout == "13 jobs, 12 done, 1 dead after 3 tries\nnever more than 3 at once\n", found.stderr
    assert found.returncode == 0
