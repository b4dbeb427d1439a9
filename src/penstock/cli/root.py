"""The root command. It knows each command's name and help line; a command's module is imported when it is run.

So `penstock --help` and shell completion import no event loop, no Redis client and no application.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from penstock.cli.exit_codes import CliError, Exit, code_of
from penstock.cli.help import Group, examples
from penstock.cli.terminal import echo
from penstock.errors import PenstockError

#: name → where its click command is, and its line in `penstock --help`
COMMANDS: Mapping[str, tuple[str, str]] = {
    "dev": ("penstock.cli.dev:dev", "Run a reloading worker and the HTTP service, for development."),
    "worker": ("penstock.cli.worker:worker", "Run jobs until told to stop."),
    "serve": ("penstock.cli.serve:serve", "Answer HTTP requests until told to stop."),
    "engine": ("penstock.cli.engine:engine", "Keep the embedded server running, or install functions."),
    "token": ("penstock.cli.token:token", "Make tokens for the HTTP service."),
    "enqueue": ("penstock.cli.enqueue:enqueue", "Send one job, and wait for its result if asked to."),
    "job": ("penstock.cli.job:job", "Look at jobs, cancel them, run them again."),
    "queue": ("penstock.cli.queue:queue", "List queues, pause, resume, bound and purge them."),
    "dead": ("penstock.cli.dead:dead", "List what jobs died of, run them again, discard them."),
    "batch": ("penstock.cli.batch:batch", "Look at batches, watch, seal and cancel them."),
    "lane": ("penstock.cli.lane:lane", "List lanes and locks, change what they allow."),
    "cron": ("penstock.cli.cron:cron", "List schedules, run, pause and resume them."),
    "events": ("penstock.cli.events:events", "Print what happens, as it happens."),
    "top": ("penstock.cli.top:top", "Show what moves: queues, workers, rates, latencies, lanes."),
    "workers": ("penstock.cli.workers:workers", "List the live workers."),
    "doctor": (
        "penstock.cli.doctor:doctor",
        "Check server, settings, code, and all that is stored.",
    ),
    "bench": ("penstock.cli.bench:bench", "Measure this machine, beside a bare loop on the same server."),
    "demo": ("penstock.cli.demo:demo", "See it run, on a server of its own, in half a minute."),
    "completion": ("penstock.cli.completion:completion", "Print what makes your shell complete commands."),
}

EXAMPLES = examples(
    "penstock worker shop.tasks:app -c 50 -q mail,default",
    """penstock enqueue shop.tasks:send '{"user": 7}' --wait""",
    "penstock queue ls -o json",
    "penstock job show GMhDvFiI8U01",
)
CODES = """\b
Exit codes:
  0  ok                       5  the awaited job failed
  1  failed                   6  time-out
  2  usage                    7  not found
  3  no connection            8  unhealthy
  4  app not importable"""


class LazyGroup(Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names without importing any command."""
        items = [CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        return items or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of Penstock becomes a message and an exit code."""
        try:
            return super().invoke(ctx)
        except (PenstockError, CliError) as error:
            echo(f"Error: {error}", err=True)
            ctx.exit(code_of(error))
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=f"{EXAMPLES}\n\n{CODES}")
@click.version_option(package_name="penstock", message="penstock %(version)s")
def main() -> None:
    """Penstock: a job queue on Redis and Valkey.

    The app is found by a module:attr that you give, else by app under [tool.penstock] in pyproject.toml, else by
    $PENSTOCK_APP. What needs no task runs without its code: give --namespace, and --url or $PENSTOCK_URL.

    Data goes to stdout, messages to stderr; -o json makes the data JSON.
    """
