"""Error messages of the command line: what is wrong, and what to do."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import BadOption, Penstock
from penstock.cli import dead, doctor, filters, job_lists, lane
from penstock.cli.output import Printer
from penstock.cli.root import COMMANDS
from penstock.engine.read.views import JobLog
from tests.cli.shell import Shell


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["wroker"], "did you mean 'worker'?"),
        (["job", "shw"], "did you mean 'show'?"),
        (["queue", "nonsense"], "valid are ls, pause, purge, resume, set"),
        (["worker", "--concurency", "5"], "Did you mean '--concurrency'?"),
        (["worker", "--lease", "soon"], "'soon': use seconds, or such as 250ms, 30s, 10m, 2h, 3d"),
        (["dead", "retry", "--namespace", "shop"], "or --all"),
        (["dead", "discard", "--namespace", "shop"], "or penstock dead purge"),
        (["enqueue", "send", "[1]", "--at", "2030-01-01T08:00"], "add Z or an offset such as +02:00"),
        (["enqueue", "send", "[1]", "--at", "2030-01-01"], "as in 2030-01-01T00:00Z"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_with_what_is_valid(shell: Shell, words: list[str], text: str) -> None:
    assert text in shell.run(*words, code=2)[1]


def test_the_file_of_an_app_is_told_to_be_named_as_a_module(shell: Shell) -> None:
    for given, module in (("shop/tasks.py", "shop.tasks"), ("./shop.py:app", "shop")):
        assert f"name it as a module, such as {module}:app" in shell.run("queue", "ls", "--app", given, code=4)[1]


def test_a_command_that_needs_no_code_names_the_namespace_when_there_is_no_app(shell: Shell) -> None:
    for words, has_hint in ((["job", "ls"], True), (["enqueue", "send", "[1]"], False)):
        error = shell.run(*words, code=4, PENSTOCK_APP="")[1]
        assert "no app is named" in error
        assert ("without the code give --namespace" in error) is has_hint


def test_enqueue_says_when_no_live_worker_serves_the_queue(shell: Shell) -> None:
    assert shell.run("enqueue", "send", "[7]")[1] == (
        "no live worker serves queue 'mail': the job waits until one does\n"
    )
    with shell.working("mail"):
        assert not shell.run("enqueue", "send", "[7]")[1]
        out, err = shell.run("enqueue", "send", "[7]", "--queue", "maill", "--id", "lost")
        assert out == "lost\n"
        assert err == "no live worker serves queue 'maill': the job waits until one does; did you mean 'mail'?\n"
        assert "no new job" in (again := shell.run("enqueue", "send", "[7]", "--queue", "maill", "--id", "lost")[1])
        assert "no live worker" not in again
        assert not shell.run("enqueue", "send", "[7]", "--queue", "maill", "-o", "json")[1]
        waited = shell.run("enqueue", "send", "[7]", "--queue", "maill", "--wait", "--timeout", "50ms", code=6)[1]
        assert waited.startswith("no live worker serves queue 'maill'")
    with shell.working():
        assert not shell.run("enqueue", "send", "[7]", "--queue", "maill")[1]


def test_numbers_have_singular_and_plural_words(shell: Shell) -> None:
    job_id = shell.run("enqueue", "send", "[7]", "--retries", "1")[0].strip()
    assert ", with 1 retry\n" in shell.run("job", "show", job_id)[0]
    assert "\n1 job, 0 running on 0 workers\n" in shell.run("top", "--once", "--interval", "20ms")[0]
    assert "1 job waits in mail. Cancel it?" in shell.run("queue", "purge", "mail", code=2)[1]
    assert "1 job matches. Cancel it?" in shell.run("job", "cancel", "--queue", "mail", code=2)[1]
    shell.run("enqueue", "send", "[7]")
    assert "2 jobs match. Cancel them?" in shell.run("job", "cancel", "--queue", "mail", code=2)[1]
    assert shell.run("job", "cancel", "--queue", "mail", "--yes")[0] == "2 jobs cancelled\n"


def test_one_finding_one_waiting_job_and_one_left_job_have_singular_words(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "lane": "k",
        "kind": "lock",
        "in_use": 1,
        "limit": 1,
        "waiting": 1,
        "paused": False,
        "rate": "",
        "conflict": "",
    }
    lane._print(row)
    lane._print(row | {"waiting": 2})
    assert capsys.readouterr().out == "lock k: 1 in use of 1, 1 waits\nlock k: 1 in use of 1, 2 wait\n"
    job_lists._print_lines(JobLog(1, []), 0, Printer("table"))
    filters.report_left(1, dead._BATCH_NOT_ENDED)
    err = capsys.readouterr().err
    assert err == "(1 line is no longer kept)\n1 stays, for its batch has not ended\n"
    report = {"namespace": "n", "server": "s", "settings": {}, "jobs": 0, "workers": 0, "counts_checked": True}
    finding = {"rule": "r", "subject": "s", "text": "t", "todo": ""}
    doctor._print(report | {"findings": [finding], "fixed": [], "advice": []})
    assert "1 finding\n" in capsys.readouterr().out


def test_a_reason_that_repeats_the_state_is_left_out(shell: Shell) -> None:
    job_id = shell.run("enqueue", "send", "[7]")[0].strip()
    shell.run("job", "cancel", job_id)
    assert re.search(r"^state +cancelled$", shell.run("job", "show", job_id)[0], re.MULTILINE)
    assert shell.run("job", "ls")[0].splitlines()[1].endswith(" -")
    assert shell.json("job", "show", job_id)["reason"] == "cancelled"  # for programs it stays


def test_an_unknown_option_of_a_task_is_told_with_name_among_the_valid() -> None:
    app = Penstock("shop")
    options: dict[str, Any] = {"nmae": "send"}
    with pytest.raises(BadOption, match=r"did you mean 'name'\?.*and for @app.task name"):
        app.task(**options)

    @app.task
    async def send() -> None: ...

    wrong: dict[str, Any] = {"name": "sent"}
    with pytest.raises(BadOption, match=r"only @app.task\(name=…\)"):
        send.using(**wrong)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_whose_lines_are_not_cut_off(shell: Shell, name: str) -> None:
    assert not re.search(r"[a-z,]\.\.\.$", shell.run(name, "--help")[0], re.MULTILINE)


def test_a_worker_with_a_wrong_url_says_so_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from penstock import Penstock\n\napp = Penstock('shop')\n")
    command = [sys.executable, "-m", "penstock.cli", "worker", "shop:app", "--url", "localhost:6379"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: 'localhost:6379' is no URL: write embedded://, redis://host:6379/0")
