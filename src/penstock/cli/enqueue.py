"""`penstock enqueue`: send one job, and wait for its result if asked to."""

import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.api.task import Task
from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.help import examples
from penstock.cli.options import duration, full_name, with_target
from penstock.cli.output import Printer, print_json
from penstock.cli.target import Target, run
from penstock.cli.terminal import echo
from penstock.cli.workers import serves
from penstock.client.client import Client
from penstock.engine.answers import EnqueueAnswer
from penstock.errors import JobCancelled, JobFailed, ResultExpired, Unavailable
from penstock.model.options import guess

_NO_RESULT = object()


def moment(text: str) -> datetime:
    """A time with its time zone."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: use a time with its zone, such as 2030-01-31T08:00+01:00") from None
    if value.tzinfo is None:
        example = value.isoformat(timespec="minutes") + "Z"
        raise click.BadParameter(f"{text!r} has no time zone: add Z or an offset such as +02:00, as in {example}")
    return value


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
@with_target
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
    options |= {"id": id_, "timeout": run_timeout, "unique": options["unique"] or unique_args or None}
    used = {name: value for name, value in options.items() if value not in (None, ())}
    configured = app.find_task(full_name(task, app.tasks)).using(**used)
    job = configured.call(*args, **kwargs).job

    async def send(client: Client) -> None:
        answer = await client.producer.enqueue(job)
        if wait:
            await _warn_if_unserved(client, answer, job.header.queue, printer)
            await _wait(configured, answer, timeout, printer)
        else:
            _print_job(answer, printer)
            await _warn_if_unserved(client, answer, job.header.queue, printer)

    run(app.client, send)


def arguments_of(text: str, hint: str = "JSON") -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments, from an array or an object; - reads stdin."""
    try:
        arguments = msgspec.json.decode(sys.stdin.buffer.read() if text == "-" else text)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{error}: {text[:80]!r}", param_hint=hint) from None
    match arguments:
        case dict():
            return [], arguments
        case list():
            return arguments, {}
    raise click.BadParameter('use an object, {"user": 7}, or an array, [7]', param_hint=hint)


def _print_job(answer: EnqueueAnswer, printer: Printer) -> None:
    if printer.is_json:
        print_json(_as_json(answer, answer.state))
    else:
        _note_existing(answer)
        echo(answer.id)


async def _warn_if_unserved(client: Client, answer: EnqueueAnswer, queue: str, printer: Printer) -> None:
    """Say that no live worker serves the queue. The job is stored, so an error of this check is ignored."""
    if printer.is_json or answer.word != "created":
        return
    with suppress(Unavailable):
        workers = await client.views.workers()
        if not any(serves(worker, queue) for worker in workers):
            hint = guess(queue, {name for worker in workers for name in worker.queues})
            text = f"no live worker serves queue {queue!r}: the job waits until one does"
            echo(f"{text};{hint}" if hint else text, err=True)


async def _wait(task: Task[..., Any, Any], answer: EnqueueAnswer, timeout: float, printer: Printer) -> None:
    if not printer.is_json:
        _note_existing(answer)
        echo(f"job {answer.id}", err=True)
    try:
        value = await task.job(answer.id).result(timeout)
    except ResultExpired as error:
        echo(str(error), err=True)
        value = _NO_RESULT
    except TimeoutError:
        raise CliError(await _timeout_text(task, answer, timeout), Exit.TIMED_OUT) from None
    except (JobFailed, JobCancelled) as error:
        if printer.is_json:
            state = "dead" if isinstance(error, JobFailed) else "cancelled"
            print_json(_as_json(answer, state) | {"error": str(error)})
        raise
    _print_result(answer, value, printer)


async def _timeout_text(task: Task[..., Any, Any], answer: EnqueueAnswer, timeout: float) -> str:
    why = await task.job(answer.id).explain()
    return f"job {answer.id} has not ended within {timeout:g} s: {why}"


def _print_result(answer: EnqueueAnswer, value: Any, printer: Printer) -> None:
    result = {} if value is _NO_RESULT else {"result": value}
    if printer.is_json:
        print_json(_as_json(answer, "done") | result)
    elif result:
        print_json(value)


def _as_json(answer: EnqueueAnswer, state: str) -> dict[str, Any]:
    return {"id": answer.id, "state": state, "created": answer.word == "created"}


def _note_existing(answer: EnqueueAnswer) -> None:
    if answer.word != "created":
        what = "id" if answer.word == "exists" else "unique key"
        echo(f"no new job: an earlier one, {answer.state}, has this {what}", err=True)
