"""`penstock enqueue`: one job from the shell."""

import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.api.task import Task
from penstock.app import Penstock
from penstock.cli.exit_codes import Exit, Failure
from penstock.cli.help import examples
from penstock.cli.options import duration, full_name, targeted
from penstock.cli.output import Printer, print_json
from penstock.cli.target import Target, run
from penstock.cli.workers import serves
from penstock.client.client import Client
from penstock.engine.answers import EnqueueAnswer
from penstock.errors import JobCancelled, JobFailed, ResultExpired, Unavailable
from penstock.model.options import guess

_NEVER = object()  #: a result that is not there


def moment(text: str) -> datetime:
    """A time with its zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: use a time with its zone, such as 2030-01-31T08:00+01:00") from None
    if found.tzinfo is None:
        whole = found.isoformat(timespec="minutes")
        raise click.BadParameter(f"{text!r} has no time zone: add Z or an offset such as +02:00, as in {whole}Z")
    return found


@click.command(
    epilog=examples(
        "penstock enqueue shop.tasks:send '{\"user\": 7}'",
        "penstock enqueue send '[7, \"hello\"]' --delay 10m --priority 5",
        "penstock enqueue send '{\"user\": 7}' --wait --timeout 1m | jq .",
    )
)
@click.argument("task")
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--wait", is_flag=True, help="Wait for the end, and print the result as JSON.")
@click.option("--timeout", type=duration, default="30s", show_default=True, help="How long to wait; the job goes on.")
@click.option("--queue", help="Another queue than the task's.")
@click.option("--priority", type=int, help="0 (first) to 99 (last).")
@click.option("--delay", type=duration, help="Not before this time has passed.")
@click.option("--at", type=moment, help="Not before this moment: 2030-01-31T08:00+01:00.")
@click.option("--expires", type=duration, help="Not any more if it has not started by then.")
@click.option("--retries", type=int, help="How often to try again.")
@click.option("--run-timeout", type=duration, help="How long a run may take.")
@click.option("--keep-result", type=duration, help="How long the result is kept.")
@click.option("--id", "id_", metavar="ID", help="Its id: a second job with it is not made.")
@click.option("--unique", metavar="KEY", help="Not if an unfinished job has this key.")
@click.option("--unique-args", is_flag=True, help="Not if an unfinished job has the same task and arguments.")
@click.option("--tag", "tags", multiple=True, help="A tag; several if given several times.")
@targeted
def enqueue(
    target: Target,
    printer: Printer,
    task: str,
    arguments: str,
    timeout: float,
    id_: str | None,
    run_timeout: float | None,
    *,
    wait: bool,
    unique_args: bool,
    **options: Any,
) -> None:
    """Send one job, and wait for its result if asked to.

    Prints the id of the job, or with --wait its result as JSON. The arguments are an object, by name, or an array, by
    position; - reads them from stdin. TASK is its full name, module:function, or the part after the colon if only one
    task has it.
    """
    app = target.open_app()
    args, kwargs = arguments_of(arguments)
    chosen = options | {"id": id_, "timeout": run_timeout, "unique": options["unique"] or unique_args or None}
    found = _find(app, task).using(**{name: value for name, value in chosen.items() if value not in (None, ())})
    call = found.call(*args, **kwargs)

    async def work(client: Client) -> None:
        placed = await client.producer.enqueue(call.job)
        if wait:
            await _say_unserved(client, placed, call.job.header.queue, printer)
            await _wait(found, placed, timeout, printer)
        else:
            _show(placed, printer)
            await _say_unserved(client, placed, call.job.header.queue, printer)

    run(app.client, work)


def _find(app: Penstock, name: str) -> Task[..., Any, Any]:
    return app.find_task(full_name(name, app.tasks))


def arguments_of(text: str, hint: str = "JSON") -> tuple[list[Any], dict[str, Any]]:
    """By position and by name, from an array or an object; - reads stdin."""
    try:
        found = msgspec.json.decode(sys.stdin.buffer.read() if text == "-" else text)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{error}: {text[:80]!r}", param_hint=hint) from None
    match found:
        case dict():
            return [], found
        case list():
            return found, {}
    raise click.BadParameter('use an object, {"user": 7}, or an array, [7]', param_hint=hint)


def _show(placed: EnqueueAnswer, printer: Printer) -> None:
    if printer.is_json:
        print_json(_answer(placed, placed.state))
    else:
        _mention(placed)
        click.echo(placed.id)


async def _say_unserved(client: Client, placed: EnqueueAnswer, queue: str, printer: Printer) -> None:
    """Tell a person that nobody would run a new job as things are; it is stored, so no failure here is one."""
    if printer.is_json or placed.word != "created":
        return
    with suppress(Unavailable):
        nodes = await client.views.workers()
        if not any(serves(node, queue) for node in nodes):
            meant = guess(queue, {name for node in nodes for name in node.queues})
            text = f"no live worker serves queue {queue!r}: the job waits until one does"
            click.echo(f"{text};{meant}" if meant else text, err=True)


async def _wait(task: Task[..., Any, Any], placed: EnqueueAnswer, timeout: float, printer: Printer) -> None:
    if not printer.is_json:
        _mention(placed)
        click.echo(f"job {placed.id}", err=True)
    try:
        value = await task.job(placed.id).result(timeout)
    except ResultExpired as error:
        click.echo(str(error), err=True)
        value = _NEVER
    except TimeoutError:
        raise Failure(await _late(task, placed, timeout), Exit.TIMED_OUT) from None
    except (JobFailed, JobCancelled) as error:
        if printer.is_json:
            state = "dead" if isinstance(error, JobFailed) else "cancelled"
            print_json(_answer(placed, state) | {"error": str(error)})
        raise
    _print_result(placed, value, printer)


async def _late(task: Task[..., Any, Any], placed: EnqueueAnswer, timeout: float) -> str:
    why = await task.job(placed.id).explain()
    return f"job {placed.id} has not ended within {timeout:g} s: {why}"


def _print_result(placed: EnqueueAnswer, value: Any, printer: Printer) -> None:
    result = {} if value is _NEVER else {"result": value}
    if printer.is_json:
        print_json(_answer(placed, "done") | result)
    elif result:
        print_json(value)


def _answer(placed: EnqueueAnswer, state: str) -> dict[str, Any]:
    return {"id": placed.id, "state": state, "created": placed.word == "created"}


def _mention(placed: EnqueueAnswer) -> None:
    if placed.word != "created":
        what = "id" if placed.word == "exists" else "unique key"
        click.echo(f"no new job: an earlier one, {placed.state}, has this {what}", err=True)
