"""The command line as its users meet it: real processes, a real server, exit codes."""

import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.find_app import find_app
from penstock.cli.options import duration
from penstock.cli.output import pad, span, width
from penstock.cli.root import COMMANDS, main
from penstock.model.printable import escaped
from tests.cli.shell import Shell
from tests.servers import Server, free_port, wait_for


def sleeping(shell: Shell, task: str, seconds: float) -> tuple[str, Path]:
    mark = shell.mark()
    return shell.run("enqueue", task, json.dumps([seconds, str(mark)]))[0].strip(), mark


# Enqueueing


def test_enqueue_prints_the_id_and_a_burst_worker_runs_the_job(shell: Shell) -> None:
    out, err = shell.run("enqueue", "tasks:send", '{"user": 7}')
    (job_id,) = out.split()
    assert "no live worker serves queue 'mail'" in err
    process = shell.start("worker", "--burst", "-c", "3", "-v")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    for words in ("tasks:app", shell.namespace, "3, lease 10s", "tasks:send", "in mail", f"{job_id} tasks:send"):
        assert words in err
    status = shell.json("job", "show", job_id)
    assert (status["state"], status["result"], status["attempt"]) == ("done", "7:hi", 1)


def test_enqueue_takes_an_array_a_short_name_and_every_option(shell: Shell) -> None:
    options = (
        "--delay 1h --priority 3 --queue slow --expires 2h --retries 9 --id order-1 --tag a --tag b --run-timeout 5s"
    )
    first = shell.json("enqueue", "send", '[7, "x"]', *options.split())
    assert first == {"id": "order-1", "state": "scheduled", "created": True}
    again = shell.json("enqueue", "send", '[7, "x"]', "--id", "order-1")
    assert again == first | {"created": False}
    status = shell.json("job", "show", "order-1")
    assert (status["queue"], status["priority"], status["retries"], status["tags"]) == ("slow", 3, 9, ["a", "b"])
    assert status["arguments"] == {"user": 7, "subject": "[redacted]"}
    without_code = shell.json("job", "show", "order-1", "--namespace", shell.namespace)
    assert without_code["arguments"] == {"user": "[redacted]", "subject": "[redacted]"}
    assert status["explain"].startswith("scheduled until")
    assert shell.json("enqueue", "send", "[1]", "--unique", "k")["created"]
    assert not shell.json("enqueue", "send", "[2]", "--unique", "k")["created"]


def test_waiting_prints_the_result_or_says_why_there_is_none(shell: Shell) -> None:
    _, err = shell.run("enqueue", "send", "[7]", "--wait", "--timeout", "100ms", code=6)
    assert "no live worker serves queue 'mail'" in err
    with shell.working():
        out, err = shell.run("enqueue", "send", "[7]", "--wait")
        assert out == '"7:hi"\n'
        assert err.startswith("job ")
        out, err = shell.run("enqueue", "send", "[13]", "--wait", code=5)
        assert not out
        assert "ValueError: unlucky" in err
        answer = shell.json("enqueue", "send", "[13]", "--wait", code=5)
        assert answer["state"] == "dead"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["send", "{"], 2, "truncated"),
        (["send", '{"user": "x"}'], 2, "Expected `int`"),
        (["send", "[1]", "--priority", "100"], 2, "0 (first) to 99 (last)"),
        (["send", "[1]", "--delay", "soon"], 2, "250ms"),
        (["sent", "[1]"], 7, "valid are tasks:add_up, tasks:block, tasks:chat, tasks:send, tasks:sleep"),
    ],
)
def test_what_cannot_be_enqueued_says_what_can(shell: Shell, arguments: list[str], code: int, words: str) -> None:
    assert words in shell.run("enqueue", *arguments, code=code)[1]


# The app


def test_an_app_that_cannot_be_imported_is_exit_4(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("raise RuntimeError('not today')")
    (shell.folder / "needy.py").write_text("import unheard_of")
    messages = {
        "nowhere:app": "there is no module 'nowhere'",
        "tasks:nothing": "its apps: tasks:app",
        "broken:app": "RuntimeError: not today",
        "needy:app": "No module named 'unheard_of'",
    }
    for app, words in messages.items():
        _, err = shell.run("queue", "ls", "--app", app, code=4)
        assert words in err
        assert "importlib" not in err
    assert messages["broken:app"] in shell.run("worker", "broken:app", code=4)[1]


def test_the_app_is_named_by_argument_then_project_then_environment(shell: Shell) -> None:
    _, err = shell.run("queue", "ls", PENSTOCK_APP="", code=4)
    assert "[tool.penstock]" in err
    (shell.folder / "pyproject.toml").write_text('[tool.penstock]\napp = "project:app"\n')
    _, err = shell.run("queue", "ls", PENSTOCK_APP="environment:app", code=4)
    assert "'project'" in err
    _, err = shell.run("queue", "ls", "--app", "argument:app", code=4)
    assert "'argument'" in err


def test_the_app_of_a_project_is_found_from_its_subdirectories(shell: Shell) -> None:
    (shell.folder / "pyproject.toml").write_text('[tool.penstock]\napp = "tasks:app"\n')
    job_id = shell.json("enqueue", "send", "[7]")["id"]
    shell.folder, project = shell.folder / "deep" / "below", shell.folder
    shell.folder.mkdir(parents=True)

    def output_of(*arguments: str) -> str:
        with shell.start(*arguments, PENSTOCK_APP="") as process:  # what it imports stays in its process
            return "".join(process.communicate(timeout=60))

    assert "ready" in output_of("job", "show", job_id)
    wrong = output_of("queue", "ls", "--app", "nowhere.app")
    assert f"in {shell.folder}, in {project} or where Python looks; did you mean nowhere:app?" in wrong


def test_what_needs_no_task_runs_without_the_apps_code(shell: Shell, single: Server, tmp_path: Path) -> None:
    job_id = shell.json("enqueue", "send", "[7]")["id"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shell.folder, shell.environment = elsewhere, shell.environment | {"PENSTOCK_URL": "", "PENSTOCK_APP": ""}
    there = ("--namespace", shell.namespace, "--url", single.url)
    assert shell.json("job", "show", job_id, *there)["state"] == "ready"
    assert [row["ready"] for row in shell.json("queue", "ls", *there)] == [1]
    assert shell.json("workers", *there) == []


# Connections


def test_a_server_that_does_not_answer_is_exit_3_and_its_password_is_not_shown(shell: Shell) -> None:
    url = f"redis://me:secret@127.0.0.1:{free_port()}"
    quick = {"PENSTOCK_DEADLINE": "300ms"}
    for command in (["worker"], ["queue", "ls"]):
        out, err = shell.run(*command, "--url", url, code=3, **quick)
        assert "127.0.0.1" in err
        assert "secret" not in out + err


# Jobs, queues, workers


def test_a_dead_job_shows_its_failures_and_is_retried_and_cancelled(shell: Shell) -> None:
    job_id = shell.json("enqueue", "send", "[13]")["id"]
    shell.work_off()
    out, _ = shell.run("job", "show", job_id, "--traceback")
    worker = shell.json("job", "show", job_id)["attempts"][0]["worker"]
    words = ("dead (retries_exhausted)", "1, with 0 retries", "ValueError: unlucky", "Traceback", "WORKER", worker)
    for word in words:
        assert word in out
    _, err = shell.run("job", "show", "nothing", code=7)
    assert "no job 'nothing'" in err
    assert shell.json("job", "retry", job_id) == {"id": job_id, "state": "ready"}
    _, err = shell.run("job", "retry", job_id, code=1)
    assert "only a dead or cancelled job" in err
    rows = shell.json("job", "cancel", job_id, "nothing", code=7)
    assert rows[0] == {"id": job_id, "state": "cancelled"}
    assert set(rows[1]) == {"id", "error"}


def test_queues_are_listed_paused_and_resumed(shell: Shell) -> None:
    shell.run("enqueue", "send", "[7]")
    assert shell.json("queue", "pause", "mail") == {"queue": "mail", "paused": True, "changed": True}
    with shell.working("mail", "other"):
        (worker,) = shell.json("workers")
        assert (worker["queues"], worker["slots"]) == (["mail", "other"], 100)
        titles = "WORKER PID SLOTS BUSY QUEUES SINCE HEARD OF VERSION CODE STALLED"
        assert shell.run("workers")[0].splitlines()[0].split() == titles.split()
        title, mail, other = (line.split() for line in shell.run("queue", "ls")[0].splitlines())
        assert (title[0], title[1], title[4], title[-1]) == ("QUEUE", "PAUSED", "READY", "WORKERS")
        assert (mail[0], mail[1], mail[4], mail[-1]) == ("mail", "yes", "1", "1")
        assert (other[0], other[1], other[4], other[-1]) == ("other", "no", "0", "1")
    assert shell.json("queue", "resume", "mail")["changed"]
    _, err = shell.run("queue", "pause", "mial", code=7)
    assert "did you mean 'mail'?" in err


# Stopping a worker


def test_sigterm_lets_the_running_job_finish(shell: Shell) -> None:
    job_id, mark = sleeping(shell, "sleep", 1.0)
    with shell.worker() as process:
        wait_for(mark.exists, timeout=60)
        assert "1 of 4 (25%) asleep" in shell.run("job", "show", job_id)[0]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "no more jobs are taken" in err
    assert "stopped: every process of this worker has ended" in err
    assert shell.json("job", "show", job_id)["result"] == "rested"


def test_the_log_can_be_json_with_an_object_per_line(shell: Shell) -> None:
    job_id = shell.json("enqueue", "send", "[13]")["id"]
    _, err = shell.run("worker", "--burst", "-o", "json")
    events = [json.loads(line) for line in err.splitlines()]
    (failed,) = [event for event in events if event.get("job") == job_id]
    assert (failed["level"], failed["task"], failed["attempt"]) == ("error", "tasks:send", 1)
    assert "ValueError: unlucky" in failed["message"]


# Help


def test_every_command_has_help_with_the_same_first_line(shell: Shell) -> None:
    context = click.Context(main)
    for name, (_, line) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert (command.help or "").partition("\n")[0] == line
    out, _ = shell.run("--help")
    for name, (_, line) in COMMANDS.items():
        assert f"{name} " in out
        assert line in out
    shell.run("worker", "--concurrency", "0", code=2)


def test_help_imports_click_and_nothing_else_that_is_heavy() -> None:
    """Almost all of its time is Python's own start and click's import, so this is what keeps it quick."""
    program = """
import sys
before = set(sys.modules)
from penstock.cli.root import main
main(["--help"], standalone_mode=False)
print(*set(sys.modules) - before, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(done.stderr.split())
    packages = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert packages == {"click", "penstock"}
    assert {name for name in imported if name.startswith("penstock.")} == {
        *("penstock.cli", "penstock.cli.root", "penstock.cli.exit_codes", "penstock.cli.help", "penstock.cli.terminal"),
        *("penstock.errors", "penstock.model", "penstock.model.printable"),
    }
    assert imported.isdisjoint(
        {"asyncio", "dataclasses", "importlib.metadata", "json", "logging", "socket", "subprocess"}
    )
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


def test_the_version_is_printed(shell: Shell) -> None:
    assert shell.run("--version")[0].startswith("penstock 0.")


# Texts


def test_durations_are_numbers_of_seconds_or_texts() -> None:
    assert [duration(text) for text in ("30", "1.5", "250ms", "10m")] == [30, 1.5, 0.25, 600]
    for text in ("soon", "-1", "nan", "inf", ""):
        with pytest.raises(click.BadParameter):
            duration(text)


def test_an_app_is_told_apart_from_other_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "app_" + secrets.token_hex(4)
    (tmp_path / f"{name}.py").write_text("from penstock import Penstock\napp = Penstock('x')\nnumber = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert find_app(f"{name}:app") is find_app(name)
    for spec, words in ((f"{name}:number", "is a int, not a Penstock"), (f"{name}.deeper:app", f"'{name}.deeper'")):
        with pytest.raises(CliError, match=words) as failed:
            find_app(spec)
        assert failed.value.code == Exit.NO_APP


def test_tables_measure_what_a_terminal_shows_and_never_pass_on_control_characters() -> None:
    assert width("日本é") == 5
    assert pad("日本", 6) == "日本  "
    assert escaped("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
    assert [span(seconds) for seconds in (0.25, 3, 42, 300, 7200, 200_000)] == [
        "250 ms",
        "3.0 s",
        "42 s",
        "5 min",
        "2 h",
        "2 d",
    ]


def test_the_exit_codes_are_those_of_the_contract() -> None:
    assert [code.value for code in Exit] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]


# Schedules


def test_schedules_are_listed_in_words_run_paused_and_resumed(shell: Shell) -> None:
    assert "no schedules yet" in shell.run("cron", "ls")[1]
    with shell.working():
        wait_for(lambda: shell.json("cron", "ls"))
        (row,) = shell.json("cron", "ls")
        assert (row["id"], row["state"], row["source"], row["task"]) == ("hourly", "active", "code", "ticked")
        assert row["next_in_words"].startswith("in ")
        assert row["next_in_words"].endswith("UTC")
        out, _ = shell.run("cron", "ls", "-v")
        assert "every 1h" in out
        assert "catch up latest, overlap skip" in out
        job_id = shell.run("cron", "run", "hourly")[0].strip()
        assert job_id.startswith("hourly@run-")
        wait_for(lambda: shell.json("job", "show", job_id)["state"] == "done")
        assert shell.run("cron", "pause", "hourly")[0] == "hourly  paused\n"
        assert shell.run("cron", "pause", "hourly")[0] == "hourly  paused (it was already)\n"
        assert shell.json("cron", "ls")[0]["next"] is None
        assert shell.json("cron", "resume", "hourly") == {"schedule": "hourly", "state": "active", "changed": True}
    assert "no schedule 'nightly'" in shell.run("cron", "pause", "hourly", "nightly", code=7)[1]
    assert shell.json("cron", "ls", "--namespace", shell.namespace)[0]["made"] == 1


def test_a_scheduled_job_is_given_another_time_or_run_now(shell: Shell) -> None:
    job_id = shell.run("enqueue", "send", "[7]", "--delay", "1h")[0].strip()
    assert shell.json("job", "reschedule", job_id, "--delay", "2h") == {"id": job_id, "state": "scheduled"}
    assert shell.json("job", "run", job_id) == {"id": job_id, "state": "ready"}
    assert "not found" not in shell.run("job", "show", job_id)[0]
    assert "no job" in shell.run("job", "run", "nothing", code=7)[1]


# Batches

OPEN = """
import json
from tasks import add_up, app, send

options = {{"limit": 2, "then": add_up}} if {seal} else {{}}
with app:
    batch = app.batch("nightly" if {seal} else "left", **options).open_sync()
    batch.add_many_sync(send.call(n) for n in range({first}, {last}))
    if {seal}:
        batch.seal_sync()
    print(json.dumps(batch.id))
"""


def _opened(shell: Shell, how: str, first: int, last: int) -> str:
    return str(shell.script(OPEN.format(seal=how == "seal", first=first, last=last)))


def test_a_batch_is_watched_to_its_end(shell: Shell) -> None:
    batch = _opened(shell, "seal", 0, 5)
    with shell.working("mail"):
        out, err = shell.run("batch", "watch", batch, "--timeout", "60")
    assert "nightly: 5 of 5 done, 0 running, 0 failed, ended" in err
    assert "ended" in out
    rows = shell.json("batch", "show", batch)
    assert (rows["total"], rows["done"], rows["state"], rows["open"], rows["running"]) == (5, 5, "ended", False, 0)
    assert shell.run("batch", "seal", batch)[0]


def test_a_batch_with_a_failed_member_fails_the_watch(shell: Shell) -> None:
    batch = _opened(shell, "seal", 13, 14)
    with shell.working("mail"):
        shell.run("batch", "watch", batch, "--timeout", "60", code=Exit.JOB_FAILED)
    assert shell.json("batch", "retry", batch)["pending"] == 1


def test_a_batch_that_was_left_open_is_listed_sealed_and_cancelled(shell: Shell) -> None:
    batch = _opened(shell, "leave", 0, 3)
    assert [row["id"] for row in shell.json("batch", "ls", "--open")] == [batch]
    assert "left" in shell.run("batch", "ls")[0]
    assert shell.json("batch", "seal", batch)["state"] == "sealed"
    shell.run("batch", "watch", batch, "--timeout", "100ms", code=Exit.TIMED_OUT)
    rows = shell.json("batch", "cancel", batch, "--reason", "not wanted")
    assert (rows["state"], rows["cancelled"], rows["reason"]) == ("ended", 3, "not wanted")
    shell.run("batch", "show", "nobody", code=Exit.NOT_FOUND)
