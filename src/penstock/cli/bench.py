"""`penstock bench`."""

import asyncio
import importlib
import json
from dataclasses import asdict
from functools import partial

import click

from penstock.cli.options import output_option
from penstock.cli.terminal import echo


@click.command
@click.option("--url", help="The server; else $PENSTOCK_URL, else the embedded one.")
@click.option("-n", "--jobs", default=20_000, show_default=True, type=click.IntRange(1_000), help="How many jobs.")
@output_option
def bench(url: str | None, jobs: int, output: str) -> None:
    """Measure this machine, beside a bare loop on the same server.

    Figures of one run compare with each other; alone they say little. Everything it stores is removed afterwards.
    """
    # Imported by name: the command line and the benchmark are in one layer and may not import each other.
    throughput = importlib.import_module("penstock.bench")
    lateness = importlib.import_module("penstock.bench.lateness")
    report = partial(echo, err=True)
    rates = asyncio.run(throughput.run(url, jobs, report))
    delays = asyncio.run(lateness.run(url, report=report))
    if output == "json":
        echo(json.dumps([asdict(measure) for measure in (*rates, *delays)]))
    else:
        echo(f"{throughput.table(rates)}\n\n{lateness.table(delays)}")
