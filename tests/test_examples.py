"""The examples run as they stand, and do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Server

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str, **environment: str) -> str:
    """What it prints; without a URL it starts an embedded server."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    ours |= {"PENSTOCK_EMBEDDED_LINGER": "0.2"} | environment
    program = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    folder = environment.get("FOLDER")
    done = subprocess.run(program, cwd=folder, env=ours, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_jobs_with_one_lock_run_one_after_the_other_while_another_worker_goes_on(tmp_path: Path) -> None:
    said = run("locking.py", FOLDER=str(tmp_path))
    who = {job: worker for worker, job in re.findall(r"worker (\w) begins job (\d)", said)}
    assert who["1"] == who["3"] != who["2"]
    order = [said.index(text) for text in ("has done job 1", "begins job 3", "has done job 3", "has done job 2")]
    assert order == sorted(order)
    assert re.search(r"job 3 waits: held: lock 't' has 1 of 1 in use", said)
    assert re.search(r"both workers sleep\n.*begins job 4\n(.*\n)*.*job 4 began [\d.]+ ms after", said)
    assert (tmp_path / ".penstock").is_dir()  # it needed no server


def test_each_order_is_billed_once_though_a_worker_is_killed_in_the_middle(tmp_path: Path, single: Server) -> None:
    said = run("orders.py", ORDERS_FOLDER=str(tmp_path), PENSTOCK_URL=single.url)
    assert said.endswith("one of two workers was killed\n30 orders, 30 of them billed, 30 bills\n")


def test_a_job_that_fails_comes_again_as_part_of_the_stream_and_is_given_up_in_the_end(single: Server) -> None:
    said = run("observable.py", PENSTOCK_URL=single.url)
    attempts = {page: re.findall(rf"received {page}, attempt (\d)", said) for page in ("/fine", "/shaky", "/broken")}
    assert attempts == {"/fine": ["1"], "/shaky": ["1", "2", "3"], "/broken": ["1", "2", "3", "4"]}
    assert re.findall(r"/broken (?:failed, again after (\d) s|is given up)", said) == ["2", "4", "6", ""]
    assert all(f"{page} is done" in said for page in ("/fine", "/shaky"))


def test_each_request_is_split_limited_and_announced_once_by_a_listener_elsewhere(
    tmp_path: Path, single: Server
) -> None:
    file = tmp_path / "requests.txt"
    file.write_text("# a comment\n2:a:b:c:d:e\n\n1:x:y  # and another\n5:one\n")
    said = run("requests.py", str(file), REQUESTS_FOLDER=str(tmp_path), PENSTOCK_URL=single.url)
    assert sorted(said.splitlines()) == [f"request {n}: {m} of {m} parts done" for n, m in ((2, 5), (4, 2), (5, 1))]


def test_a_web_service_loses_nothing_though_a_worker_and_then_everything_is_killed(tmp_path: Path) -> None:
    said = run("web_service.py", WEB_SERVICE_FOLDER=str(tmp_path))
    assert said.splitlines() == [
        "13 jobs were taken; a worker was killed in the middle of its own",
        "everything was killed, and is started again",
        "never more than 3 at once",
        "12 are done, 1 is dead after 3 tries",
    ]


def test_rows_stream_into_a_batch_that_keeps_its_limit_and_reports_once(single: Server) -> None:
    report, sums = run("etl_batch.py", PENSTOCK_URL=single.url).splitlines()
    assert report.strip() == "orders.csv: 396 of 400 rows loaded, 4 could not be read"
    most = re.fullmatch(r"in all 79,398.00; never more than (\d) rows at once", sums)
    assert most
    assert int(most[1]) <= 8


def test_a_fastapi_app_takes_jobs_and_gives_their_results(single: Server) -> None:
    pytest.importorskip("fastapi")
    said = run("fastapi_app.py", PENSTOCK_URL=single.url).splitlines()
    assert said[:2] == [
        "POST /texts 'to be or not to be' -> 202",
        "GET /texts/… -> 200 {'to': 2, 'be': 2, 'or': 1, 'not': 1}",
    ]
    assert "-> 422 {'detail': 'job " in said[3]
    assert said[4:] == [
        "GET /texts/none -> 404 {'detail': 'no such text'}",
        "GET /queue/api/v1/tasks -> 200 ['count-words']",
    ]


def test_a_flask_app_takes_jobs_that_a_worker_process_does(tmp_path: Path, single: Server) -> None:
    pytest.importorskip("flask")
    said = run("flask_app.py", FLASK_APP_FOLDER=str(tmp_path), PENSTOCK_URL=single.url).splitlines()
    assert said[:2] == [
        "POST /orders/7/invoice twice -> created: True, False",
        "GET /invoices/… -> {'state': 'ready'}, for there is no worker",
    ]
    assert "invoice for order 7: tea, milk (by process " in said[2]
    assert "ValueError: order 8 is empty" in said[3]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_each_example_says_what_was_wanted_and_how_it_is_done(file: Path) -> None:
    text = file.read_text("utf-8")
    assert f"\n    python examples/{file.name}" in text
    assert "\nWhat was wanted: " in text
    assert "\nHow Penstock does it: " in text
    assert len(text.splitlines()) <= 105
