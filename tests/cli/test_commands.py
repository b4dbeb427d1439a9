"""Every command of the tree: its table, its JSON and its exit codes. One without a row here, or in ELSEWHERE, fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from penstock.cli import target
from penstock.cli.exit_codes import Exit
from penstock.cli.root import main
from tests.cli.shell import TASKS, Shell
from tests.servers import Server, free_port

MORE = """

@app.every("2h", id="rarely", args=[7, "tick"])
@app.task(name="rarely")
async def rarely(user: int, subject: str) -> str:
    return "seldom"
"""

STAGE = """
import asyncio
import json

from penstock import Lane
from tasks import app, chat, rarely, send, sleep


async def main():
    async with app:
        jobs = {f"dead{n}": await send.enqueue(13) for n in range(6)}
        jobs |= {"done": await send.enqueue(7), "talked": await chat.enqueue()}
        await app.run_until_idle()
        later = sleep.using(delay="1h")
        jobs |= {f"later{n}": await later.enqueue(1, "x") for n in range(8)}
        jobs["laned"] = await send.using(lane=Lane("tenant:7", limit=2)).enqueue(7)
        batches = {name: app.batch(name) for name in ("open", "sealed", "ended", "failed")}
        for name, batch in batches.items():
            await batch.open()
            if name in {"open", "sealed"}:
                await batch.add(send.using(delay="1h").call(1))
        jobs["member"] = await batches["failed"].add(send.using(priority=0).call(13))
        await app.run_until_idle()
        jobs["laned"] = await send.using(lane=Lane("tenant:7", limit=2), queue="idle").enqueue(7)
        for name in ("sealed", "ended"):
            await batches[name].seal()
        async with app.worker(queues=["nothing"]):  # so that the schedules of the code are known
            while len(await app.schedules()) < 2:
                await asyncio.sleep(0.02)
        print(json.dumps({name: handle.id for name, handle in (jobs | batches).items()}))


asyncio.run(main())
"""


class Case(NamedTuple):
    """A command: arguments that are fine, what they show, and others that are not; {names} are ids of the stage."""

    good: str
    shows: str  #: the titles of its table, or words of what it prints
    keys: str  #: of what -o json prints, or of its first row; nothing if it prints no JSON
    bad: tuple[tuple[str, int, str], ...] = ()  #: arguments, exit code, and words of the error
    again: str = ""  #: arguments for JSON, if the same cannot be done twice


JOB = (
    "id state reason task queue priority attempt retries created since due expires started finished worker cancelling"
    " progress tags attempts"
)
BATCH = "id name state total done dead cancelled pending open reason generation parent priority created ended"
LANE = "lane kind in_use limit waiting paused rate conflict"
QUEUE = "queue paused scheduled held ready running done dead cancelled limit max_size workers"
NOBODY = ("nothing", 7, "no batch 'nothing'")

CASES = {
    "enqueue": Case("send [7]", "", "id state created", (("sent [7]", 7, "valid are"), ("send {{", 2, "truncated"))),
    "job ls": Case(
        "--state dead",
        "ID STATE TASK QUEUE ATTEMPT SINCE WHY",
        JOB + " error",
        (("--state undead", 2, "--state"), ("--cursor x", 2, "cursor")),
    ),
    "job show": Case(
        "{done}", 'state done result "7:hi"', JOB + " arguments explain result", (("nothing", 7, "no job 'nothing'"),)
    ),
    "job cancel": Case(
        "{later0}",
        "{later0} cancelled",
        "id state",
        (
            ("nothing", 7, "no job 'nothing'"),
            ("{done}", 1, "it is done"),
            ("--state scheduled", 2, "--yes"),
            ("", 2, "one of both"),
        ),
        again="{later1}",
    ),
    "job retry": Case(
        "{dead0}",
        "{dead0} ready",
        "id state",
        (("nothing", 7, "no job 'nothing'"), ("{done}", 1, "only a dead or cancelled job")),
        again="{dead1}",
    ),
    "job move": Case(
        "{later2} --to slow",
        "{later2} scheduled",
        "id state queue",
        (
            ("nothing --to slow", 7, "no job 'nothing'"),
            ("{done} --to slow", 1, "only one that waits"),
            ("x", 2, "--to"),
        ),
    ),
    "job log": Case("{talked}", "#1 info line 0", "at attempt level text", (("nothing", 7, "no job 'nothing'"),)),
    "job run": Case(
        "{later3}", "{later3} ready", "id state", (("nothing", 7, "no job 'nothing'"), ("{done}", 1, "done"))
    ),
    "job reschedule": Case(
        "{later4} --delay 2h",
        "{later4} scheduled",
        "id state",
        (("nothing --delay 1h", 7, "no job"), ("{later4}", 2, "--delay"), ("{later4} --delay soon", 2, "250ms")),
    ),
    "queue ls": Case("", QUEUE.upper().replace("_", " "), QUEUE),
    "queue pause": Case(
        "default", "default paused", "queue paused changed", (("defualt", 7, "did you mean"), ("", 2, "queue"))
    ),
    "queue resume": Case("idle", "idle open", "queue paused changed", (("nowhere", 7, "nowhere"), ("", 2, "queue"))),
    "queue set": Case(
        "mail --limit 3",
        "mail runs at most 3 at once",
        "queue limit max_size",
        (("mail", 2, "--limit"), ("mail --max-size -4", 2, "max_size")),
    ),
    "queue purge": Case(
        "idle --dry-run",
        "idle 1 job waited, 0 cancelled",
        "queue matched cancelled",
        (("idle", 2, "--yes"), ("nowhere --yes", 7, "nowhere")),
    ),
    "dead ls": Case(
        "",
        "GROUP COUNT FIRST LAST TASK ERROR",
        "group count first last sample task queue reason type message",
        (("--older-than soon", 2, "250ms"),),
    ),
    "dead show": Case(
        "{dead2}",
        "job {dead2} error ValueError: unlucky",
        "group job",
        (("nothing", 7, "no group of dead jobs and no job 'nothing'"), ("{done}", 1, "not dead")),
    ),
    "dead retry": Case(
        "{dead3}",
        "{dead3} 1 match, 1 retried",
        "what kind matched retried",
        (
            ("nothing", 7, "no group of dead jobs and no job 'nothing'"),
            ("", 2, "say which"),
            ("a b --args [1]", 2, "one job"),
            ("{done}", 1, "not dead"),
        ),
        again="{dead4}",
    ),
    "dead discard": Case(
        "{dead5} --yes",
        "{dead5} 1 match, 1 discarded",
        "what kind matched discarded",
        (
            ("{dead5}", 2, "--yes"),
            ("nothing --yes", 7, "no group of dead jobs and no job 'nothing'"),
            ("{member} --yes", 1, "a batch that has not ended"),
            ("", 2, "say which"),
        ),
    ),
    "dead purge": Case("--task tasks:none --yes", "0 jobs match", "matched discarded", (("--queue mail", 2, "--yes"),)),
    "batch ls": Case("", "ID NAME STATE TOTAL DONE DEAD CANCELLED PENDING CREATED", BATCH),
    "batch show": Case("{open}", "name open state open total 1", BATCH + " running", (NOBODY,)),
    "batch watch": Case(
        "{ended}", "name ended state ended", BATCH, (NOBODY, ("{open} --timeout 50ms", 6, "not ended within"))
    ),
    "batch seal": Case("{sealed}", "name sealed state sealed", BATCH, (NOBODY,)),
    "batch retry": Case("{ended}", "name ended state ended", BATCH, (NOBODY,)),
    "batch cancel": Case("{ended} --reason over", "name ended state ended", BATCH, (NOBODY,)),
    "lane ls": Case("", LANE.upper().replace("_", " "), LANE),
    "lane show": Case("tenant:7", "lane tenant:7: 0 in use", LANE + " holders"),
    "lane set": Case(
        "tenant:8 --limit 4",
        "lane tenant:8: 0 in use of 4",
        LANE,
        (("tenant:8", 2, "--limit"), ("t --limit x", 2, "x")),
    ),
    "cron ls": Case(
        "",
        "SCHEDULE STATE TASK WHEN NEXT MADE SKIPPED LAST",
        "id state source task queue rule words tz jitter catch_up overlap next upcoming last_job made skipped missed"
        " waiting history next_in_words",
    ),
    "cron run": Case("hourly", "hourly@run-", "schedule job queued", (("no", 7, "no schedule 'no'"),), again="rarely"),
    "cron pause": Case("rarely", "rarely paused", "schedule state changed", (("no", 7, "no schedule 'no'"),)),
    "cron resume": Case("hourly", "hourly active", "schedule state changed", (("no", 7, "no schedule 'no'"),)),
    "events": Case(
        "--no-follow --since 0 -n 2",
        "enqueue mail tasks:send",
        "id at kind queue task job attempt note",
        (("--kind nothing", 2, "kind of event"),),
    ),
    "top": Case(
        "--once --interval 20ms",
        "penstock top QUEUE READY LANE IN USE",
        "namespace at queues workers lanes",
        (("--interval soon", 2, "250ms"),),
    ),
    "workers": Case("", "no live workers", ""),
    "doctor": Case(
        "",
        "namespace server settings audit clean RULE SUBJECT TEXT TODO",
        "healthy namespace server settings jobs workers counts_checked findings advice fixed",
        (("now", 2, "unexpected"),),
    ),
    "token new": Case(
        "grafana --role viewer --queue mail",
        "pst_",
        "name token sha256 file entry",
        (
            ("grafana", 2, "--role"),
            ("grafana --role owner", 2, "owner"),
            ("grafana --role viewer --expires soon", 2, "250ms"),
            ("grafana --role viewer --max-timeout soon", 2, "250ms"),
            ("grafana --role viewer --file /nowhere/tokens.toml", 2, "No such file"),
        ),
    ),
    "completion": Case("bash", "complete -o nosort", "", (("tcsh", 2, "tcsh"),)),
}

#: Commands that are processes, or take long, and the tests that have their outputs and exit codes.
ELSEWHERE = {
    "dev": ("tests/cli/test_dev.py", "test_dev_runs_jobs_and_serves_http_until_it_is_told_to_stop"),
    "engine install": (
        "tests/server/test_acl.py",
        "test_two_users_with_the_full_rule_share_the_functions_and_nothing_else",
    ),
    "worker": ("tests/cli/test_cli.py", "test_the_log_can_be_json_with_an_object_per_line"),
    "serve": ("tests/http/test_serve.py", "test_serve_answers_for_an_app_until_it_is_stopped"),
    "bench": ("tests/cli/test_commands.py", "test_bench_prints_a_table_or_json"),
    "demo": ("tests/demo/test_demo.py", "test_the_demo_ends_by_itself_with_a_clean_audit_and_leaves_nothing_behind"),
}


def leaves(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its whole name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, *above, name)
        else:
            yield " ".join((*above, name)), command


LEAVES = dict(leaves(main))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, single: Server) -> tuple[Shell, dict[str, str]]:
    """An app to which everything has happened that a command can be about, and the ids of it all."""
    shell = Shell(tmp_path_factory.mktemp("stage"), single.url)
    (shell.folder / "tasks.py").write_text(TASKS + MORE)
    return shell, shell.script(STAGE)


def words(text: str, ids: dict[str, str]) -> list[str]:
    return text.format(**ids).split()


def test_every_command_has_a_row() -> None:
    assert LEAVES.keys() == CASES.keys() | ELSEWHERE.keys()
    for file, test in ELSEWHERE.values():
        assert f"def {test}(" in (Path(__file__).parents[2] / file).read_text()


@pytest.mark.parametrize("name", CASES)
def test_a_command_prints_its_table_and_its_json(stage: tuple[Shell, dict[str, str]], name: str) -> None:
    shell, ids = stage
    case = CASES[name]
    out, err = shell.run(*name.split(), *words(case.good, ids))
    shown = out or err
    titles = words(case.shows, ids)
    if case.shows.isupper():  # the titles of a table, all of them
        assert out.splitlines()[0].split() == titles
    else:
        assert " ".join(titles) in " ".join(shown.split()) or all(word in shown for word in titles), shown
    if case.keys:
        columns = printed(shell, name, words(case.again or case.good, ids))
        assert columns.keys() == set(case.keys.split())


def printed(shell: Shell, name: str, arguments: list[str]) -> dict[str, Any]:
    """What it prints as JSON: an object, the first row of an array, or the first line of a stream."""
    if name == "events":
        arguments += ["-n", "1"]
    rows: Any = shell.json(*name.split(), *arguments)
    row: dict[str, Any] = rows[0] if isinstance(rows, list) else rows
    return row


@pytest.mark.long
def test_bench_prints_a_table_or_json(stage: tuple[Shell, dict[str, str]]) -> None:
    shell, _ = stage
    assert "name" in printed(shell, "bench", ["-n", "1000"])
    assert "enqueue" in shell.run("bench", "-n", "1000")[0]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.bad])
def test_a_command_refuses_with_its_exit_code(stage: tuple[Shell, dict[str, str]], name: str) -> None:
    shell, ids = stage
    for arguments, code, text in CASES[name].bad:
        _, err = shell.run(*name.split(), *words(arguments, ids), code=code)
        assert text in err


@pytest.mark.parametrize("name", LEAVES)
def test_an_unknown_option_of_a_command_is_a_usage_error(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--nonsense"])
    assert result.exit_code == Exit.USAGE
    assert "No such option" in result.stderr


def test_a_command_says_when_there_is_no_server_or_no_app(
    stage: tuple[Shell, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "_SEARCH_TIMEOUT", 0.01)
    shell, ids = stage
    refused = f"redis://127.0.0.1:{free_port()}"
    for name, case in CASES.items():
        if "url" in {option.name for option in LEAVES[name].params}:
            arguments = [*name.split(), *words(case.good, ids)]
            out, err = shell.run(*arguments, "--url", refused, code=3)
            assert (out, err[:7]) == ("", "Error: "), name
            assert "nowhere" in shell.run(*arguments, "--app", "nowhere:app", code=4)[1]
