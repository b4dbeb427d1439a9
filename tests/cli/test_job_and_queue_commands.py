"""Commands that watch, change or purge jobs and queues: their table, their JSON and their exit codes."""

import importlib
import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.cli.test_cli import sleeping
from tests.cli.test_commands import LEAVES
from tests.servers import wait_for


def enqueue(shell: Shell, *arguments: str) -> str:
    return shell.run("enqueue", *arguments)[0].strip()


BUSY = """
import asyncio, json
from tasks import app, send, sleep

async def main():
    async with app:
        jobs = {name: await send.enqueue(number) for name, number in (("first", 13), ("second", 13), ("done", 7))}
        await app.run_until_idle()
        jobs["ready"] = await send.using(tags=["big"]).enqueue(7)
        jobs["scheduled"] = await sleep.using(delay="1h").enqueue(1, "x")
        print(json.dumps({name: job.id for name, job in jobs.items()}))

asyncio.run(main())
"""


@pytest.fixture
def busy(shell: Shell) -> dict[str, str]:
    """Two dead, one done, one ready, one scheduled; by what they are."""
    jobs: dict[str, str] = shell.script(BUSY)
    return jobs


def ids(rows: list[dict[str, Any]]) -> set[str]:
    return {row["id"] for row in rows}


# job


def test_job_ls_lists_by_filter_with_a_cursor(shell: Shell, busy: dict[str, str]) -> None:
    assert ids(shell.json("job", "ls")) == set(busy.values())
    assert ids(shell.json("job", "ls", "--state", "dead")) == {busy["first"], busy["second"]}
    assert ids(shell.json("job", "ls", "--tag", "big")) == {busy["ready"]}
    assert ids(shell.json("job", "ls", "--error", "unlucky", "--limit", "1")) <= {busy["first"], busy["second"]}
    assert shell.json("job", "ls", "--queue", "nowhere") == []
    out, err = shell.run("job", "ls", "--state", "dead")
    assert out.splitlines()[0].split()[:4] == ["ID", "STATE", "TASK", "QUEUE"]
    assert "ValueError: unlucky" in out
    assert "no such jobs" in shell.run("job", "ls", "--queue", "nowhere")[1]
    assert "BadOption" not in err
    assert "state" in shell.run("job", "ls", "--state", "undead", code=2)[1]
    assert "cursor" in shell.run("job", "ls", "--cursor", "x", code=2)[1]


def test_job_cancel_of_one_that_had_ended_is_a_failure_that_says_its_state(shell: Shell, busy: dict[str, str]) -> None:
    out, err = shell.run("job", "cancel", busy["done"], code=1)
    assert not out
    assert "had ended before, it is done" in err
    rows = shell.json("job", "cancel", busy["ready"], busy["first"], code=1)
    assert rows[0] == {"id": busy["ready"], "state": "cancelled"}
    assert "it is dead" in rows[1]["error"]


def test_job_cancel_by_filter_counts_first_and_wants_a_yes(shell: Shell, busy: dict[str, str]) -> None:
    assert shell.json("job", "cancel", "--queue", "mail", "--dry-run") == {"matched": 4, "cancelled": 0}
    assert "--yes" in shell.run("job", "cancel", "--queue", "mail", code=2)[1]
    assert shell.json("job", "cancel", "--queue", "mail", "--yes")["cancelled"] == 1
    assert shell.run("job", "cancel", "--queue", "mail", "--state", "ready", "--yes")[0].startswith("0 jobs match")
    assert "one of both" in shell.run("job", "cancel", code=2)[1]


def test_job_retry_by_filter(shell: Shell, busy: dict[str, str]) -> None:
    assert shell.json("job", "retry", "--error", "unlucky", "--dry-run") == {"matched": 2, "retried": 0}
    assert shell.run("job", "retry", "--error", "unlucky")[0] == "2 jobs retried\n"
    assert shell.json("job", "show", busy["first"])["state"] == "ready"
    assert "only dead and cancelled" in shell.run("job", "retry", "--state", "ready", code=2)[1]


def test_job_move_takes_what_waits_to_another_queue(shell: Shell, busy: dict[str, str]) -> None:
    assert shell.run("job", "move", "--queue", "mail", "--to", "slow")[0] == "1 job moved\n"
    assert shell.json("job", "show", busy["ready"])["queue"] == "slow"
    assert shell.json("job", "move", busy["ready"], "--to", "mail")["queue"] == "mail"
    shell.run("job", "move", "missing", "--to", "mail", code=7)
    assert "only one that waits" in shell.run("job", "move", busy["done"], "--to", "slow", code=1)[1]


def test_job_log_prints_what_it_wrote_and_follows_until_its_end(shell: Shell) -> None:
    job_id = enqueue(shell, "chat", "[5, 0.2]")
    with shell.working():
        out, _ = shell.run("job", "log", job_id, "-f", "-o", "json")
    assert [json.loads(line)["text"] for line in out.splitlines()] == [f"line {n}" for n in range(5)]
    table = shell.run("job", "log", job_id)[0].splitlines()
    assert [line.split(maxsplit=3)[1:] for line in table] == [["#1", "info", f"line {n}"] for n in range(5)]
    assert len(shell.json("job", "log", job_id)) == 5
    shell.run("job", "log", "missing", code=7)
    quiet = enqueue(shell, "send", "[1]")
    assert "no lines" in shell.run("job", "log", quiet)[1]


# queue


def test_queue_set_bounds_it_and_a_full_one_refuses(shell: Shell) -> None:
    out, _ = shell.run("queue", "set", "mail", "--max-size", "1", "--limit", "3")
    assert out == "mail  runs at most 3 at once, at most 1 may wait\n"
    enqueue(shell, "send", "[1]")
    assert "max_size" in shell.run("enqueue", "send", "[2]", code=1)[1]
    assert shell.json("queue", "set", "mail", "--reset") == {"queue": "mail", "limit": None, "max_size": None}
    shell.run("queue", "set", "mail", code=2)
    shell.run("queue", "set", "mail", "--max-size", "-4", code=2)
    (row,) = shell.json("queue", "ls")
    assert (row["queue"], row["max_size"], row["ready"]) == ("mail", None, 1)


def test_queue_purge_counts_first_and_wants_a_yes(shell: Shell, busy: dict[str, str]) -> None:
    assert shell.json("queue", "purge", "mail", "--dry-run") == {"queue": "mail", "matched": 1, "cancelled": 0}
    assert "--yes" in shell.run("queue", "purge", "mail", code=2)[1]
    assert shell.run("queue", "purge", "mail", "--yes")[0] == "mail  1 job waited, 1 cancelled\n"
    assert shell.json("job", "show", busy["ready"])["reason"] == "purged"
    shell.run("queue", "purge", "nowhere", "--yes", code=7)


def test_a_task_is_paused_and_resumed(shell: Shell) -> None:
    assert shell.run("queue", "pause", "--task", "tasks:send")[0] == "tasks:send  paused\n"
    again = shell.json("queue", "pause", "--task", "tasks:send")
    assert again == {"task": "tasks:send", "paused": True, "changed": False}
    shell.run("queue", "pause", "--task", "tasks:sent", code=7)
    shell.run("queue", "pause", "mail", "--task", "tasks:send", code=2)
    shell.run("queue", "pause", code=2)
    assert shell.run("queue", "resume", "--task", "tasks:send")[0] == "tasks:send  open\n"


# dead


def test_dead_ls_groups_by_error_and_lists_jobs(shell: Shell, busy: dict[str, str]) -> None:
    (group,) = shell.json("dead", "ls")
    assert (group["count"], group["type"], group["message"], group["task"]) == (
        2,
        "ValueError",
        "unlucky",
        "tasks:send",
    )
    assert group["first"] <= group["last"]
    out, _ = shell.run("dead", "ls")
    assert out.splitlines()[0].split() == ["GROUP", "COUNT", "FIRST", "LAST", "TASK", "ERROR"]
    assert ids(shell.json("dead", "ls", "--jobs")) == {busy["first"], busy["second"]}
    assert shell.json("dead", "ls", "--queue", "nowhere") == []
    assert "no dead jobs" in shell.run("dead", "ls", "--older-than", "1d")[1]


def test_dead_show_has_the_error_of_a_group_or_a_job(shell: Shell, busy: dict[str, str]) -> None:
    (group,) = shell.json("dead", "ls")
    out, _ = shell.run("dead", "show", group["group"])
    assert "ValueError: unlucky" in out
    assert "Traceback" in out
    assert shell.json("dead", "show", busy["first"])["job"]["id"] == busy["first"]
    shell.run("dead", "show", "missing", code=7)
    assert "not dead" in shell.run("dead", "show", busy["done"], code=1)[1]


def test_dead_retry_by_id_group_filter_and_with_other_arguments(shell: Shell, busy: dict[str, str]) -> None:
    (group,) = shell.json("dead", "ls")
    dry = shell.json("dead", "retry", group["group"], "--dry-run")
    assert (dry["matched"], dry["retried"]) == (2, 0)
    assert "Expected `int`" in shell.run("dead", "retry", busy["first"], "--args", '{"user": "x"}', code=2)[1]
    out, _ = shell.run("dead", "retry", busy["first"], "--args", '{"user": 8}')
    assert "other arguments" in out
    assert shell.json("job", "show", busy["first"])["arguments"]["user"] == 8
    assert shell.json("dead", "retry", group["group"])["retried"] == 1
    assert shell.json("dead", "retry", "--all") == {"matched": 0, "retried": 0}
    shell.run("dead", "retry", code=2)
    shell.run("dead", "retry", "missing", code=7)
    shell.run("dead", "retry", "a", "b", "--args", "[1]", code=2)


def test_dead_discard_and_purge_want_a_yes(shell: Shell, busy: dict[str, str]) -> None:
    assert "--yes" in shell.run("dead", "discard", busy["first"], code=2)[1]
    assert shell.json("dead", "discard", busy["first"], "--yes")["discarded"] == 1
    assert shell.run("dead", "purge", "--dry-run")[0].startswith("1 job matches")
    assert "--yes" in shell.run("dead", "purge", code=2)[1]
    assert shell.json("dead", "purge", "--yes") == {"matched": 1, "discarded": 1}
    assert shell.json("dead", "ls") == []


# events, top, cron


def test_events_are_a_line_each_and_resume(shell: Shell, busy: dict[str, str]) -> None:
    lines = shell.run("events", "--no-follow", "-o", "json")[0].splitlines()
    rows = [json.loads(line) for line in lines]
    assert {"enqueue", "lease", "complete", "bury"} <= {row["kind"] for row in rows}
    rest = shell.run("events", "--no-follow", "--since", rows[-2]["id"], "-o", "json")[0].splitlines()
    assert [json.loads(line)["id"] for line in rest] == [rows[-1]["id"]]
    buried = shell.run("events", "--no-follow", "--kind", "bury", "--queue", "mail")[0]
    assert buried.count("retries_exhausted") == 2
    assert "kind of event" in shell.run("events", "--kind", "nothing", code=2)[1]
    assert len(shell.run("events", "--since", "0", "-n", "3")[0].splitlines()) == 3


def test_events_follow_what_comes(shell: Shell) -> None:
    enqueue(shell, "send", "[1]")
    with shell.inside():
        queue = importlib.import_module("tasks").app.queue("mail")
    heard = threading.Event()

    def run_on_matching() -> None:
        while not heard.wait(0.05):  # it hears what comes once it listens
            queue.pause_sync()
            queue.resume_sync()

    other = threading.Thread(target=run_on_matching)
    other.start()
    try:
        out, _ = shell.run("events", "-n", "1", "-o", "json", "--kind", "pause")
    finally:
        heard.set()
        other.join()
    assert json.loads(out)["queue"] == "mail"


def test_top_shows_queues_workers_and_rates(shell: Shell, busy: dict[str, str]) -> None:
    sample = shell.json("top", "--once", "--interval", "200ms")
    assert {row["queue"] for row in sample["queues"]} == {"mail", "default"}
    assert sample["workers"] == []
    out, _ = shell.run("top", "--once", "--interval", "100ms")
    assert "penstock top" in out
    assert "READY" in out
    assert "no live workers" in out
    lines = shell.run("top", "-n", "2", "--interval", "100ms", "-o", "json")[0].splitlines()
    assert len(lines) == 2


def test_cron_ls_says_when_nobody_runs_them(shell: Shell) -> None:
    with shell.working():
        wait_for(lambda: shell.json("cron", "ls"))
        assert "no live workers" not in shell.run("cron", "ls")[1]
    out, err = shell.run("cron", "ls")
    assert "hourly" in out
    assert "no live workers" in err


NAMED = """
import asyncio, json
from tasks import app, send

async def main():
    async with app:
        for name in ("tasks:tick", "tasks:report", "other:report"):
            await app.schedule(name).set(send.call(7), every="1h")
        print(json.dumps(None))

asyncio.run(main())
"""


def test_a_schedule_may_be_named_by_the_end_of_its_id(shell: Shell) -> None:
    assert "no schedule 'tick' is known here; `penstock cron ls`" in shell.run("cron", "run", "tick", code=7)[1]
    shell.script(NAMED)
    assert shell.run("cron", "run", "tick")[0].startswith("tasks:tick@run-")
    assert shell.run("cron", "pause", "tick")[0] == "tasks:tick  paused\n"
    assert shell.json("cron", "resume", "tick")["schedule"] == "tasks:tick"
    assert "did you mean 'tasks:tick'?" in shell.run("cron", "run", "tik", code=7)[1]
    out, err = shell.run("cron", "pause", "tick", "report", code=7)  # two have it, and nothing is changed
    assert not out
    assert "did you mean" in err
    assert "paused" not in {row["state"] for row in shell.json("cron", "ls")}


# The whole


def test_every_command_has_help_with_examples(shell: Shell) -> None:
    for name in LEAVES:
        out, _ = shell.run(*name.split(), "--help")
        assert f"Usage: penstock {name}" in out
        assert "Examples:" in out or name in {"bench", "demo"}


def test_completion_for_each_shell(shell: Shell) -> None:
    for name in ("bash", "zsh", "fish"):
        assert "_PENSTOCK_COMPLETE" in shell.run("completion", name)[0]
    assert "_PENSTOCK_COMPLETE" in shell.run("completion", SHELL="/bin/bash")[0]
    shell.run("completion", SHELL="/bin/nothing", code=2)
    words = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock do", "COMP_CWORD": "1"}
    process = subprocess.run(
        [sys.executable, "-c", "from penstock.cli.root import main; main(prog_name='penstock')"],
        env=shell.environment | words,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.split() == ["plain,doctor"]


def test_a_job_that_runs_is_asked_to_stop(shell: Shell) -> None:
    job_id, mark = sleeping(shell, "sleep", 30)
    with shell.working():
        wait_for(mark.exists, timeout=30)
        assert shell.run("job", "cancel", job_id)[0] == f"{job_id}  cancelling\n"
