"""`penstock dead`: dead jobs grouped by error; retry, discard and purge them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.api.job import JobStatus, any_job, check_discarded, check_revived, moment
from penstock.api.retry_edit import retry_edited
from penstock.api.selection import Choice, Selection, choose
from penstock.app import Penstock
from penstock.cli.enqueue import arguments_of
from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.filters import (
    all_option,
    confirm,
    dry_run_option,
    question_about,
    report_left,
    run_on_matching,
    with_filter,
    yes_option,
)
from penstock.cli.help import Group, examples
from penstock.cli.job_lists import print_jobs
from penstock.cli.options import with_target
from penstock.cli.output import Printer, Row, plural, print_fields, print_json, print_table
from penstock.cli.target import Target, run
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.engine.read.dead_groups import MAX_GROUPS, DeadGroup, DeadGroups
from penstock.errors import JobNotFound, PenstockError

_BATCH_NOT_ENDED = ("stays, for its batch has not ended", "stay, for their batches have not ended")
_COLUMNS = ("group", "count", "first", "last", "task", "error")


@click.group(cls=Group)
def dead() -> None:
    """List what jobs died of, run them again, discard them."""


@dead.command(
    epilog=examples(
        "penstock dead ls",
        "penstock dead ls --jobs --queue mail --newer-than 1h",
        "penstock dead ls -o json | jq '.[0].group'",
    )
)
@with_filter("state")
@click.option("--jobs", is_flag=True, help="The jobs themselves, the last first.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="So many at most.")
@click.option("--cursor", default="", help="With --jobs: go on where another listing ended.")
@with_target
def ls(target: Target, printer: Printer, choice: Choice | None, limit: int, cursor: str, *, jobs: bool) -> None:
    """List the errors that jobs died of: how many, first and last seen.

    Two errors are the same if class, message (but for numbers, texts in quotes and the like) and the innermost frame of
    your own code are.
    """
    if jobs:
        print_jobs(target, printer, _dead(choice), limit, cursor)
        return
    groups = target.run(lambda client: _groups(client, choice))
    if printer.is_json:
        print_json([_row(group) for group in groups[:limit]])
    elif not groups:
        echo("no dead jobs", err=True)
    else:
        print_table(_COLUMNS, [_cells(group) for group in groups[:limit]])
        if len(groups) > limit:
            more = "or more " if len(groups) == MAX_GROUPS else ""
            echo(f"{plural(len(groups) - limit, f'{more}other', f'{more}others')}: --limit", err=True)


@dead.command(epilog=examples("penstock dead show 3f2a91c07b5e", "penstock dead show GMhDvFiI8U01"))
@click.argument("name", metavar="GROUP|ID")
@with_target
def show(target: Target, printer: Printer, name: str) -> None:
    """Show a group, or the error of one job, with the last traceback."""

    async def read(client: Client) -> Row:
        groups = {group.group: group for group in await DeadGroups(client.engine).groups()}
        group = groups.get(name)
        status = await _status(client, group.sample if group else name)
        if status.state != "dead":
            raise PenstockError(f"job {status.id} is {status.state}, not dead")
        job: dict[str, Any] = msgspec.to_builtins(status, builtin_types=(datetime,))
        return {"group": _row(group) if group else None, "job": job}

    printer.print_results([target.run(read)], _print_dead)


_names = click.argument("names", metavar="[GROUP|ID...]", nargs=-1)


@dead.command(
    epilog=examples(
        "penstock dead retry 3f2a91c07b5e            # a group",
        "penstock dead retry GMhDvFiI8U01",
        "penstock dead retry GMhDvFiI8U01 --args '{\"user\": 8}'",
        "penstock dead retry --queue mail --error Timeout --dry-run",
    )
)
@_names
@with_filter("state")
@all_option
@click.option("--args", "arguments", metavar="JSON", help="Other arguments, for one job: an object or an array.")
@dry_run_option
@with_target
def retry(
    target: Target,
    printer: Printer,
    names: tuple[str, ...],
    choice: Choice | None,
    arguments: str | None,
    *,
    everything: bool,
    dry_run: bool,
) -> None:
    """Run dead jobs again, with a fresh budget: by id, by group, or by filter.

    Other arguments are checked against the task if its app is there; with --namespace alone they are taken by name.
    """
    _check_selection(names, choice, everything=everything, all_hint="--all")
    client, app = target.open()
    if arguments is not None:
        _retry_edited(client, app, printer, names, arguments)
    elif names:
        _for_each(client, printer, names, "retried", dry_run=dry_run)
    else:
        run_on_matching(client, printer, _dead(choice), Selection.retry, "retried", dry_run=dry_run)


@dead.command(
    epilog=examples("penstock dead discard 3f2a91c07b5e --yes", "penstock dead discard --older-than 30d --dry-run")
)
@_names
@with_filter("state")
@dry_run_option
@yes_option
@with_target
def discard(
    target: Target, printer: Printer, names: tuple[str, ...], choice: Choice | None, *, dry_run: bool, yes: bool
) -> None:
    """Forget dead jobs, but for their ids: by id, by group, or by filter."""
    _check_selection(names, choice, everything=False, all_hint="penstock dead purge")
    client = target.open_client()
    if names:
        _for_each(client, printer, names, "discarded", dry_run=dry_run, question="Discard {them}?", yes=yes)
    else:
        _discard_matching(client, printer, choice, dry_run=dry_run, yes=yes)


@dead.command(epilog=examples("penstock dead purge --yes", "penstock dead purge --queue mail --yes"))
@with_filter("state")
@dry_run_option
@yes_option
@with_target
def purge(target: Target, printer: Printer, choice: Choice | None, *, dry_run: bool, yes: bool) -> None:
    """Forget all dead jobs, or all that a filter fits."""
    _discard_matching(target.open_client(), printer, choice, dry_run=dry_run, yes=yes)


def _discard_matching(client: Client, printer: Printer, choice: Choice | None, *, dry_run: bool, yes: bool) -> None:
    run_on_matching(
        client,
        printer,
        _dead(choice),
        Selection.discard,
        "discarded",
        dry_run=dry_run,
        question="Discard {them}? Arguments and errors are lost.",
        yes=yes,
        why_left=_BATCH_NOT_ENDED,
    )


def _dead(choice: Choice | None) -> Choice:
    return (choice or choose())._replace(state="dead")


def _check_selection(names: Sequence[str], choice: Choice | None, *, everything: bool, all_hint: str) -> None:
    if bool(names) + (choice is not None) + everything != 1:
        raise CliError(f"say which: groups or ids, or a filter such as --queue, or {all_hint}", Exit.USAGE)


async def _groups(client: Client, choice: Choice | None) -> list[DeadGroup]:
    job_filter = None if choice is None else choice.filter(await client.views.now(), "dead")
    return await DeadGroups(client.engine).groups(job_filter)


def _for_each(
    client: Client,
    printer: Printer,
    names: Sequence[str],
    verb: str,
    *,
    dry_run: bool,
    question: str | None = None,
    yes: bool = True,
) -> None:
    """Retry or discard these groups and ids; an unknown one is an error before anything is changed."""

    async def count(client: Client) -> list[Row]:
        return [await _match(client, name) for name in names]

    matches = run(client, count)
    number = sum(int(row["matched"]) for row in matches)
    if question and not dry_run:
        confirm(question_about(number, question), yes=yes)

    async def change(client: Client) -> list[Row]:
        return [{**row, verb: 0 if dry_run else await _change(client, row, verb)} for row in matches]

    rows = run(client, change)
    printer.print_results(rows, lambda row: echo(f"{row['what']}  {row['matched']} match, {row[verb]} {verb}"))
    if question and not dry_run:
        report_left(number - sum(int(row[verb]) for row in rows), _BATCH_NOT_ENDED)


async def _match(client: Client, name: str) -> Row:
    """Whether the name is a group or a job, and how many dead jobs that are."""
    number = await Selection(lambda: client, choose(group=name)).count()
    if number:
        return {"what": name, "kind": "group", "matched": number}
    status = await _status(client, name)
    if status.state != "dead":
        raise PenstockError(f"job {name} is {status.state}, not dead")
    return {"what": name, "kind": "job", "matched": 1}


async def _status(client: Client, name: str) -> JobStatus:
    """The job of this id; the error says that the name is no group either."""
    try:
        return await any_job(client, name).status()
    except JobNotFound:
        text = f"no group of dead jobs and no job {name!r} is known here; `penstock dead ls` lists the groups"
        raise JobNotFound(text) from None


async def _change(client: Client, row: Row, verb: str) -> int:
    if row["kind"] == "group":
        group = Selection(lambda: client, choose(group=row["what"], state="dead"))
        return await (group.retry() if verb == "retried" else group.discard())
    if verb == "retried":
        check_revived((await client.engine.revive([row["what"]]))[0], row["what"])
        return 1
    check_discarded((await client.engine.discard([row["what"]]))[0], row["what"])
    return 1


def _retry_edited(client: Client, app: Penstock | None, printer: Printer, names: Sequence[str], text: str) -> None:
    if len(names) != 1:
        raise CliError("--args is for one job, named by its id", Exit.USAGE)
    args, kwargs = arguments_of(text, "--args")

    async def retry_one(client: Client) -> Row:
        await retry_edited(client, app.tasks if app else {}, names[0], kwargs or args)
        return {"what": names[0], "kind": "job", "matched": 1, "retried": 1}

    printer.print_results([run(client, retry_one)], lambda row: echo(f"{row['what']}  retried with other arguments"))


def _row(group: DeadGroup) -> Row:
    row: dict[str, Any] = msgspec.to_builtins(group)
    return row | {"first": moment(group.first), "last": moment(group.last)}


def _cells(group: DeadGroup) -> list[Any]:
    error = ": ".join(filter(None, (group.type, group.message))) or group.reason
    return [group.group, group.count, moment(group.first), moment(group.last), group.task, error[:100]]


def _print_dead(row: Row) -> None:
    group, job = row["group"], row["job"]
    last = job["attempts"][-1] if job["attempts"] else None
    fields: list[tuple[str, Any]] = [("group", group["group"]), ("count", group["count"])] if group else []
    fields += [("first", group["first"]), ("last", group["last"])] if group else []
    fields += [("job", job["id"]), ("task", job["task"]), ("queue", job["queue"]), ("reason", job["reason"])]
    fields += [("died", job["finished"]), ("attempts", job["attempt"])]
    print_fields([*fields, ("error", f"{last['type']}: {last['message']}" if last else None)])
    if last and last["traceback"]:
        echo("\n" + "\n".join(last["traceback"].splitlines()))
