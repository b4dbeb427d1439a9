"""`penstock dead`: jobs that died, by what they died of."""

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
from penstock.cli.exit_codes import Exit, Failure
from penstock.cli.filters import all_of_them, ask_about, confirm, dry_run, filtered, say_rest, steer, yes
from penstock.cli.help import Group, examples
from penstock.cli.job_lists import list_jobs
from penstock.cli.options import targeted
from penstock.cli.output import Printer, Row, clean, counted, print_fields, print_json, print_table
from penstock.cli.target import Target, run
from penstock.client.client import Client
from penstock.engine.read.dead_groups import MOST, DeadGroup, DeadGroups
from penstock.errors import JobNotFound, PenstockError

_STAY = ("stays, for its batch has not ended", "stay, for their batches have not ended")
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
@filtered("state")
@click.option("--jobs", is_flag=True, help="The jobs themselves, the last first.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="So many at most.")
@click.option("--cursor", default="", help="With --jobs: go on where another listing ended.")
@targeted
def ls(target: Target, printer: Printer, choice: Choice | None, limit: int, cursor: str, *, jobs: bool) -> None:
    """List the errors that jobs died of: how many, first and last seen.

    Two errors are the same if class, message (but for numbers, texts in quotes and the like) and the innermost frame of
    your own code are.
    """
    if jobs:
        list_jobs(target, printer, _dead(choice), limit, cursor)
        return
    found = run(target.open_hub(), lambda client: _groups(client, choice))
    if printer.is_json:
        print_json([_row(one) for one in found[:limit]])
    elif not found:
        click.echo("no dead jobs", err=True)
    else:
        print_table(_COLUMNS, [_line(one) for one in found[:limit]])
        if len(found) > limit:
            more = "or more " if len(found) == MOST else ""
            click.echo(f"{counted(len(found) - limit, f'{more}other', f'{more}others')}: --limit", err=True)


@dead.command(epilog=examples("penstock dead show 3f2a91c07b5e", "penstock dead show GMhDvFiI8U01"))
@click.argument("what", metavar="GROUP|ID")
@targeted
def show(target: Target, printer: Printer, what: str) -> None:
    """Show a group, or the error of one job, with the last traceback."""

    async def work(client: Client) -> Row:
        groups = {one.group: one for one in await DeadGroups(client.engine).groups()}
        group = groups.get(what)
        status = await _status(client, group.sample if group else what)
        if status.state != "dead":
            raise PenstockError(f"job {status.id} is {status.state}, not dead")
        job: dict[str, Any] = msgspec.to_builtins(status, builtin_types=(datetime,))
        return {"group": _row(group) if group else None, "job": job}

    printer.answers([run(target.open_hub(), work)], _print_dead)


_some = click.argument("what", metavar="[GROUP|ID...]", nargs=-1)


@dead.command(
    epilog=examples(
        "penstock dead retry 3f2a91c07b5e            # a group",
        "penstock dead retry GMhDvFiI8U01",
        "penstock dead retry GMhDvFiI8U01 --args '{\"user\": 8}'",
        "penstock dead retry --queue mail --error Timeout --dry-run",
    )
)
@_some
@filtered("state")
@all_of_them
@click.option("--args", "arguments", metavar="JSON", help="Other arguments, for one job: an object or an array.")
@dry_run
@targeted
def retry(
    target: Target,
    printer: Printer,
    what: tuple[str, ...],
    choice: Choice | None,
    arguments: str | None,
    *,
    everything: bool,
    dry_run: bool,
) -> None:
    """Run dead jobs again, with a fresh budget: by id, by group, or by filter.

    Other arguments are checked against the task if its app is there; with --namespace alone they are taken by name.
    """
    _check_named(what, choice, everything=everything, all_of_them="--all")
    client, app = target.open()
    if arguments is not None:
        _retry_edited(client, app, printer, what, arguments)
    elif what:
        _each(client, printer, what, "retried", dry=dry_run)
    else:
        steer(client, printer, _dead(choice), lambda found, told: found.retry(told), "retried", dry=dry_run)


@dead.command(
    epilog=examples("penstock dead discard 3f2a91c07b5e --yes", "penstock dead discard --older-than 30d --dry-run")
)
@_some
@filtered("state")
@dry_run
@yes
@targeted
def discard(
    target: Target, printer: Printer, what: tuple[str, ...], choice: Choice | None, *, dry_run: bool, yes: bool
) -> None:
    """Forget dead jobs, but for their ids: by id, by group, or by filter."""
    _check_named(what, choice, everything=False, all_of_them="penstock dead purge")
    client = target.open_hub()
    if what:
        _each(client, printer, what, "discarded", dry=dry_run, question="Discard {them}?", sure=yes)
    else:
        _discard_all(client, printer, choice, dry=dry_run, sure=yes)


@dead.command(epilog=examples("penstock dead purge --yes", "penstock dead purge --queue mail --yes"))
@filtered("state")
@dry_run
@yes
@targeted
def purge(target: Target, printer: Printer, choice: Choice | None, *, dry_run: bool, yes: bool) -> None:
    """Forget all dead jobs, or all that a filter fits."""
    _discard_all(target.open_hub(), printer, choice, dry=dry_run, sure=yes)


def _discard_all(client: Client, printer: Printer, choice: Choice | None, *, dry: bool, sure: bool) -> None:
    steer(
        client,
        printer,
        _dead(choice),
        lambda found, told: found.discard(told),
        "discarded",
        dry=dry,
        question="Discard {them}? Arguments and errors are lost.",
        sure=sure,
        rest=_STAY,
    )


def _dead(choice: Choice | None) -> Choice:
    return (choice or choose())._replace(state="dead")


def _check_named(what: Sequence[str], choice: Choice | None, *, everything: bool, all_of_them: str) -> None:
    if bool(what) + (choice is not None) + everything != 1:
        raise Failure(f"say which: groups or ids, or a filter such as --queue, or {all_of_them}", Exit.USAGE)


async def _groups(client: Client, choice: Choice | None) -> list[DeadGroup]:
    wanted = None if choice is None else choice.filter(await client.views.now(), "dead")
    return await DeadGroups(client.engine).groups(wanted)


def _each(
    client: Client,
    printer: Printer,
    what: Sequence[str],
    word: str,
    *,
    dry: bool,
    question: str | None = None,
    sure: bool = True,
) -> None:
    """Groups and ids that were named; one that is not known is an error before anything is changed."""

    async def count(client: Client) -> list[Row]:
        return [await _named(client, one) for one in what]

    rows = run(client, count)
    number = sum(int(row["matched"]) for row in rows)
    if question and not dry:
        confirm(ask_about(number, question), sure=sure)

    async def work(client: Client) -> list[Row]:
        return [{**row, word: 0 if dry else await _act(client, row, word)} for row in rows]

    found = run(client, work)
    printer.answers(found, lambda row: click.echo(f"{row['what']}  {row['matched']} match, {row[word]} {word}"))
    if question and not dry:
        say_rest(number - sum(int(row[word]) for row in found), _STAY)


async def _named(client: Client, what: str) -> Row:
    number = await Selection(lambda: client, choose(group=what)).count()
    if number:
        return {"what": what, "kind": "group", "matched": number}
    status = await _status(client, what)
    if status.state != "dead":
        raise PenstockError(f"job {what} is {status.state}, not dead")
    return {"what": what, "kind": "job", "matched": 1}


async def _status(client: Client, what: str) -> JobStatus:
    """Of a job whose id may have been meant to be a group."""
    try:
        return await any_job(client, what).status()
    except JobNotFound:
        text = f"no group of dead jobs and no job {what!r} is known here; `penstock dead ls` lists the groups"
        raise JobNotFound(text) from None


async def _act(client: Client, row: Row, word: str) -> int:
    if row["kind"] == "group":
        group = Selection(lambda: client, choose(group=row["what"], state="dead"))
        return await (group.retry() if word == "retried" else group.discard())
    if word == "retried":
        check_revived((await client.engine.revive([row["what"]]))[0], row["what"])
        return 1
    check_discarded((await client.engine.discard([row["what"]]))[0], row["what"])
    return 1


def _retry_edited(client: Client, app: Penstock | None, printer: Printer, what: Sequence[str], text: str) -> None:
    if len(what) != 1:
        raise Failure("--args is for one job, named by its id", Exit.USAGE)
    args, kwargs = arguments_of(text, "--args")

    async def work(client: Client) -> Row:
        await retry_edited(client, app.tasks if app else {}, what[0], kwargs or args)
        return {"what": what[0], "kind": "job", "matched": 1, "retried": 1}

    printer.answers([run(client, work)], lambda row: click.echo(f"{row['what']}  retried with other arguments"))


def _row(one: DeadGroup) -> Row:
    row: dict[str, Any] = msgspec.to_builtins(one)
    return row | {"first": moment(one.first), "last": moment(one.last)}


def _line(one: DeadGroup) -> list[Any]:
    error = ": ".join(filter(None, (one.type, one.message))) or one.reason
    return [one.group, one.count, moment(one.first), moment(one.last), one.task, error[:100]]


def _print_dead(row: Row) -> None:
    group, job = row["group"], row["job"]
    last = job["attempts"][-1] if job["attempts"] else None
    fields: list[tuple[str, Any]] = [("group", group["group"]), ("count", group["count"])] if group else []
    fields += [("first", group["first"]), ("last", group["last"])] if group else []
    fields += [("job", job["id"]), ("task", job["task"]), ("queue", job["queue"]), ("reason", job["reason"])]
    fields += [("died", job["finished"]), ("attempts", job["attempt"])]
    print_fields([*fields, ("error", f"{last['type']}: {last['message']}" if last else None)])
    if last and last["traceback"]:
        click.echo("\n" + "\n".join(map(clean, last["traceback"].splitlines())))
