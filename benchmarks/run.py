"""One run over the chosen systems: every measure that can be taken, a line for each, and a note for what failed."""

import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import server, turns
from benchmarks.adapter import Failed, Place, sending
from benchmarks.environments import CannotInstall, versions
from benchmarks.figures import GROUPS, MEASURES, Figure, Results
from benchmarks.measures import Bench, Measured, Scale
from benchmarks.systems import System

Say = Callable[[str], None]
Programs = Callable[[System], Path]  #: makes sure that a system is installed, and tells where

PARTS: Final[tuple[tuple[tuple[str, ...], Callable[[Bench], Measured]], ...]] = (
    (("memory",), Bench.memory),
    (("start", "idle", "latency", "lateness", "drain", "cost"), Bench.one_worker),
    (("drain",), Bench.two_workers),
)

ONCE: Final = ("memory", "start", "idle")  #: what is the same each time, and measured in the first round only


def run(
    systems: Iterable[System],
    programs: Programs,
    say: Say,
    *,
    groups: Iterable[str] = GROUPS,
    scale: Scale | None = None,
) -> Results:
    """Measure in rounds, one repeat of each system in each; what waits for a lost worker runs for all at the end.

    Within a round the systems take turns, a few seconds each, with one measure after the other: a machine that is slow
    for a minute is so for all of them alike. Enqueueing has shorter turns, before the rounds.
    """
    begin, scale = time.monotonic(), scale or Scale()
    current = _Run(programs, say, frozenset(groups), scale)
    installed = [system for system in systems if current.install(system)]
    if "enqueue" in current.groups:
        current.enqueue(installed)
    for number in range(scale.repeats):
        current.round(installed, frozenset(ONCE if number else ()))
    if "crash" in current.groups:
        with ThreadPoolExecutor(max(1, len(installed))) as pool:
            list(pool.map(lambda system: current.part([system], Bench.crash), installed))
    current.results.seconds = time.monotonic() - begin
    return current.results


class _Run:
    def __init__(self, programs: Programs, say: Say, groups: frozenset[str], scale: Scale) -> None:
        self._programs, self._say, self.groups, self._scale = programs, say, groups, scale
        self.results = Results(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            machine=f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            load=round(os.getloadavg()[0], 1),
            python=platform.python_version(),
        )

    def install(self, system: System) -> bool:
        try:
            self.results.versions[system.name] = versions(self._programs(system), system)
        except CannotInstall as error:
            self._failed(system, f"cannot be installed here: {error}")
            return False
        return True

    def enqueue(self, systems: list[System]) -> None:
        with ExitStack() as stack:
            senders = [sender for system in systems if (sender := self._sender(system, stack))]
            for system, measure, values in turns.enqueue(senders, self._scale):
                self._add(Figure(system.name, measure, values), system, self.groups)
            for sender in senders:
                if sender.failure:
                    self._failed(sender.system, f"enqueue: {sender.failure}")

    def _sender(self, system: System, stack: ExitStack) -> turns.Sender | None:
        _, place = self._place(system, stack)
        try:
            return turns.Sender(place, stack.enter_context(sending(place)))
        except Failed as error:
            self._failed(system, f"enqueue: {error}")
            return None

    def round(self, systems: list[System], without: frozenset[str]) -> None:
        groups = self.groups - without
        for needed, part in PARTS:
            if groups.intersection(needed):
                self.part(systems, part, groups)

    def part(
        self, systems: list[System], part: Callable[[Bench], Measured], groups: frozenset[str] = frozenset()
    ) -> None:
        """All systems in turns, until each is done or has failed."""
        with ExitStack() as stack:
            benches = {system: self._bench(system, groups, stack) for system in systems}
            going = {system: stack.enter_context(closing(part(bench))) for system, bench in benches.items()}
            while going:
                for system, measures in list(going.items()):
                    try:
                        has_more = self._turn(system, measures, groups or self.groups)
                    except Failed as error:
                        self._failed(system, f"{part.__name__.replace('_', ' ')}: {error}")
                        has_more = False
                    if not has_more:
                        del going[system]

    def _bench(self, system: System, groups: frozenset[str], stack: ExitStack) -> Bench:
        return Bench(*self._place(system, stack), self._scale, groups.__contains__)

    def _place(self, system: System, stack: ExitStack) -> tuple[server.Server, Place]:
        """A fresh server, and where the system is measured on it."""
        fresh, folder = stack.enter_context(server.running())
        self.results.server = fresh.version
        return fresh, Place(system, self._programs(system), fresh.url, folder)

    def _turn(self, system: System, measures: Measured, groups: frozenset[str]) -> bool:
        """One turn of a system; whether it wants another."""
        for measured in measures:
            if measured is None:
                return True
            self._add(Figure(system.name, *measured), system, groups)
        return False

    def _add(self, figure: Figure, system: System, groups: frozenset[str]) -> None:
        if figure.measure.partition(".")[0] in groups:
            figure = self.results.add(figure)
            spread = f"  ±{figure.spread:.0%}" if len(figure.values) > 1 else ""
            self._say(f"{system.title:16}{MEASURES[figure.measure].title:50}{figure!s:>20}{spread}")

    def _failed(self, system: System, text: str) -> None:
        self.results.note(system.name, text)
        self._say(f"{system.title:16}{text}")
