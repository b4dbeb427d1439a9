"""`penstock demo`."""

import importlib

import click


@click.command
def demo() -> None:
    """See it run, on a server of its own, in half a minute.

    It starts an embedded server in a temporary directory, shows what happens to jobs when all goes well and when it
    does not, and removes everything afterwards.
    """
    # Imported by name: the command line and the demo are in one layer and may not import each other.
    click.get_current_context().exit(importlib.import_module("penstock.demo.run").main())
