"""One seed after the other: start everything, break it for a while, let it come to rest, and check what happened."""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock import Penstock
from penstock.errors import PenstockError
from penstock.model.header import FINISHED
from tests.chaos import stored, tasks
from tests.chaos.attempts import history
from tests.chaos.checks import Violation, check_ledger
from tests.chaos.crew import Crew
from tests.chaos.faults import Faults
from tests.chaos.ledger import read
from tests.chaos.load import Load
from tests.chaos.operators import Operators
from tests.chaos.report import report, summary
from tests.chaos.survivors import Survivors
from tests.chaos.undo import NAMES

SETTLE = 45.0  #: seconds that everything has to finish in, once nothing breaks any more
BACKLOG = 150  #: unfinished jobs above which producers wait
KINDS = ("chaos", "failover", "clock")


class Outcome(NamedTuple):
    """What came of a seed."""

    seed: int
    kind: str
    jobs: int
    starts: int
    faults: dict[str, int]
    verbs: int
    seconds: float
    violations: list[Violation]
    folder: Path


def kind_of(seed: int) -> str:
    """Every fourth seed promotes a lagging replica; every fifth has a server whose clock steps, where that can be."""
    if seed % 4 == 0:
        return "failover"
    return "clock" if seed % 5 == 0 and Crew.can_step() else "chaos"


class Run:
    """A seed."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        kind: str,
        only: Sequence[str],
        *,
        progress: bool,
        settle: float = SETTLE,
        mixed: bool = True,
        undone: str | None = None,
    ) -> None:
        self.seed, self.seconds, self.kind = seed, seconds, kind
        self._only = only
        self._settle = settle
        self._mixed = mixed
        self._progress = progress
        self._undone = undone
        self.folder = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-{seed}-"))

    async def go(self) -> Outcome:
        began, rng = time.monotonic(), random.Random(self.seed)
        crew = Crew(self.folder, kind=self.kind, undone=self._undone)
        try:
            crew.start()
            return await self._work(crew, rng, began)
        finally:
            crew.end()

    async def _work(self, crew: Crew, rng: random.Random, began: float) -> Outcome:
        app, hands = tasks.make_apps(crew.name, crew.networks["P"].url)
        failover = self.kind == "failover"
        load = Load(app, hands, crew.ledger, random.Random(rng.random()), failover=failover, mixed=self._mixed)
        faults = Faults(crew, [app, hands], random.Random(rng.random()), kind=self.kind, only=self._only)
        operators = Operators(app, load, crew.ledger, random.Random(rng.random()))
        survivors = Survivors(crew)
        try:
            await self._ready(app)
            async with asyncio.TaskGroup() as group:
                producing = group.create_task(load.run())
                group.create_task(operators.run(self.seconds))
                watching = group.create_task(self._watch(app, load, faults, survivors))
                await faults.run(self.seconds)
                load.stopping.set()
                await asyncio.wait((producing,), timeout=15)  # a server that answers nobody is told as what is stuck
                producing.cancel()
                watching.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20):
                    await operators.rest()
            found = await self._check(crew, app, hands, survivors)
        finally:
            await app.aclose()
            await hands.aclose()
        lines = history(read(crew.ledger.path), crew.census)
        verbs, seconds = sum(operators.done.values()), time.monotonic() - began
        return Outcome(
            self.seed, self.kind, load.sent, len(lines.attempts), faults.happened, verbs, seconds, found, self.folder
        )

    async def _ready(self, app: Penstock) -> None:
        """Until workers are there."""
        async with asyncio.timeout(60):
            while len(await app.client.views.workers()) < 5:  # noqa: ASYNC110  (nobody tells us)
                await asyncio.sleep(0.1)

    async def _watch(self, app: Penstock, load: Load, faults: Faults, survivors: Survivors) -> None:
        began = time.monotonic()
        while True:
            try:
                counts = await app.client.views.counts()
                waits = sum(n for row in counts.values() for state, n in row.items() if state not in FINISHED)
                load.too_many = waits > BACKLOG
                happened = f"{sum(faults.happened.values())} faults"
                self._say(f"{time.monotonic() - began:3.0f} s, {load.sent} jobs, {waits} unfinished, {happened}")
            except PenstockError:
                pass
            survivors.look()
            await asyncio.sleep(1)

    async def _check(self, crew: Crew, app: Penstock, hands: Penstock, survivors: Survivors) -> list[Violation]:
        self._say("coming to rest")
        found = await stored.until_finished(app, self._settle)
        found += await stored.until_finished(hands, 10)
        for one in (app, hands):
            found += await stored.check_system(one)
        found += survivors.check()
        late = await asyncio.to_thread(crew.leave)
        found += [Violation("leaving", "", text) for text in late]
        found += [Violation("left", "", f"process {pid} is still there") for pid in crew.census.alive]
        for one in (app, hands):
            found += await stored.check_rest(one)
        lines = history(read(crew.ledger.path), crew.census)
        found += check_ledger(lines, kind=self.kind)
        found += await stored.check_jobs([app, hands], lines, kind=self.kind)
        return found + await stored.check_batches(app, lines, kind=self.kind)

    def _say(self, text: str) -> None:
        if self._progress:
            print(f"\r\x1b[Kseed {self.seed} ({self.kind}): {text}", end="", file=sys.stderr, flush=True)


def run_seed(
    seed: int,
    seconds: float,
    *,
    kind: str | None = None,
    only: Sequence[str] = (),
    progress: bool = False,
    mixed: bool = True,
    undone: str | None = None,
) -> Outcome:
    """For tests, too; the ledger is kept if something is wrong."""
    run = Run(seed, seconds, kind or kind_of(seed), only, progress=progress, mixed=mixed, undone=undone)
    outcome = asyncio.run(run.go())
    if progress:
        print("\r\x1b[K", end="", file=sys.stderr)
    if not outcome.violations:
        shutil.rmtree(outcome.folder, ignore_errors=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, action="append", dest="seeds", help="one, or several; by default a new one")
    parser.add_argument("--seconds", type=float, default=120, help="how long things break; 120 if not said")
    parser.add_argument("--kind", choices=KINDS, help="instead of what the seed says")
    parser.add_argument(
        "--only", action="append", default=[], help="faults of this name only; may be given several times"
    )
    parser.add_argument(
        "--settle", type=float, default=SETTLE, help=f"seconds to come to rest in; {SETTLE:g} if not said"
    )
    parser.add_argument("--undo", choices=NAMES, help="run workers without this mend: there should be violations")
    parser.add_argument("--keep", action="store_true", help="keep the ledger also if all is well")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that whatever was started is ended
    outcomes = []
    for seed in arguments.seeds or [int.from_bytes(os.urandom(2), "big")]:
        run = Run(
            seed,
            arguments.seconds,
            arguments.kind or kind_of(seed),
            arguments.only,
            progress=True,
            settle=arguments.settle,
            undone=arguments.undo,
        )
        outcome = asyncio.run(run.go())
        outcomes.append(outcome)
        print(report(outcome), flush=True)
        if not outcome.violations and not arguments.keep:
            shutil.rmtree(outcome.folder, ignore_errors=True)
    print(summary(outcomes))
    return int(any(outcome.violations for outcome in outcomes))
