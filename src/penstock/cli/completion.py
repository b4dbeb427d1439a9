"""`penstock completion`: the script that makes a shell complete commands."""

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from penstock.cli.help import examples

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=examples(
        'eval "$(penstock completion bash)"       # in ~/.bashrc',
        'eval "$(penstock completion zsh)"        # in ~/.zshrc',
        "penstock completion fish > ~/.config/fish/completions/penstock.fish",
    )
)
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Print what makes your shell complete commands.

    Without a name it is for the one in $SHELL.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    completion_class = get_completion_class(name)
    if completion_class is None:
        raise click.UsageError(f"name the shell: one of {', '.join(_SHELLS)}")
    context = click.get_current_context()
    click.echo(completion_class(context.find_root().command, {}, "penstock", "_PENSTOCK_COMPLETE").source())
