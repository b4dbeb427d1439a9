"""`penstock bench`."""

import asyncio
import importlib
import json
from dataclasses import asdict
from functools import partial

import click


@click.command
@click.option("--url", help="The server; else $PENSTOCK_URL, else the embedded one.")
@click.option("-n", "--jobs", default=20_000, show_default=True, type=click.IntRange(1_000), help="How many jobs.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def bench(url: str | None, jobs: int, output: str) -> None:
    """Measure this machine, beside a bare loop on the same server.

    Figures of one run compare with each other; alone they say little. Everything it stores is removed afterwards.
    """
    # By name: beside each other, the command line and the benchmark do not know each other.
    module = importlib.import_module("penstock.bench")
    lateness = importlib.import_module("penstock.bench.lateness")
    say = partial(click.echo, err=True)
    found, late = asyncio.run(module.run(url, jobs, say)), asyncio.run(lateness.run(url, say=say))
    if output == "json":
        click.echo(json.dumps([asdict(one) for one in (*found, *late)]))
    else:
        click.echo(f"{module.table(found)}\n\n{lateness.table(late)}")
