"""`python -m benchmarks ours`, `… peers`, `… growth`, `… page`."""

import argparse
import signal
import sys
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from pathlib import Path

from benchmarks import growth, page
from benchmarks.environments import ROOT, RUN, prepare
from benchmarks.figures import GROUPS, Results
from benchmarks.run import run
from benchmarks.systems import BARE, BY_NAME, PEERS, PENSTOCK, System


def main() -> None:
    options = _options()
    # On SIGTERM it still ends the servers and workers that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.command == "growth":
        rows = growth.measure()
        if options.write:
            growth.write(rows, ROOT / "docs" / "performance.md")
        return
    if options.command != "page":
        results = _measure(options)
        results.save(options.json)
        print(page.terminal(results))
    if options.command == "page" or options.write:
        page.write(Results.read(options.json), ROOT / "docs")


def _measure(options: argparse.Namespace) -> Results:
    say = partial(print, flush=True)

    @lru_cache
    def programs(system: System) -> Path:
        return prepare(system, say, newest=options.newest)

    return run(_systems(options), programs, say, groups=options.measure)


def _systems(options: argparse.Namespace) -> list[System]:
    if options.command == "ours":
        return [BARE, PENSTOCK]
    return [BY_NAME[name] for name in options.only] if options.only else [BARE, PENSTOCK, *PEERS]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    ours = commands.add_parser("ours", help="Penstock beside the bare loop, about a minute")
    peers = commands.add_parser("peers", help="Penstock beside the bare loop and other job queues, about 20 minutes")
    peers.add_argument("--only", type=_names(BY_NAME), metavar="NAMES", help=",".join(BY_NAME))
    quick = tuple(group for group in GROUPS if group != "crash")  # which waits for a lease to end
    for command, groups in ((ours, quick), (peers, GROUPS)):
        command.add_argument("--measure", type=_names(GROUPS), default=groups, metavar="GROUPS", help=",".join(GROUPS))
        command.add_argument("--newest", action="store_true", help="install anew, for the newest versions")
        command.add_argument("--write", action="store_true", help="write docs/performance.md from what was found")
    grown = commands.add_parser("growth", help="what a job costs among millions, lanes and processes, ten minutes")
    grown.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    commands.add_parser("page", help="write docs/performance.md from the last run of `peers`")
    options = parser.parse_args()
    options.json = RUN / ("ours.json" if options.command == "ours" else "peers.json")
    if options.command != "page" and getattr(options, "only", None):
        options.json = RUN / "some.json"
    return options


def _names(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    main()
