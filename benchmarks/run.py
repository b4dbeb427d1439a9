"""One run over the chosen systems: every measure that can be taken, a line for each, and a note for what failed."""

import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import server, turns
from benchmarks.adapter import Failed, Place, sending
from benchmarks.environments import CannotInstall, versions
from benchmarks.figures import GROUPS, MEASURES, Figure, Results
from benchmarks.measures import Bench, Found, Scale
from benchmarks.systems import System

Say = Callable[[str], None]
Programs = Callable[[System], Path]  #: makes sure that a system is installed, and tells where

PARTS: Final[tuple[tuple[tuple[str, ...], Callable[[Bench], Found]], ...]] = (
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
    """Measure one system after the other, in rounds; what waits for a lost worker runs for all at once, at the end.

    A round has one repeat of each: a machine that is slow for some minutes is so for all systems alike. Enqueueing is
    measured in shorter turns, before the rounds.
    """
    begin, scale = time.monotonic(), scale or Scale()
    made = _Run(programs, say, frozenset(groups), replace(scale, repeats=1))
    installed = [system for system in systems if made.install(system)]
    if "enqueue" in made.groups:
        made.enqueue(installed, scale)
    for number in range(scale.repeats):
        for system in installed:
            made.round(system, frozenset(ONCE if number else ()))
    if "crash" in made.groups:
        with ThreadPoolExecutor(max(1, len(installed))) as pool:
            list(pool.map(lambda system: made.part(system, Bench.crash), installed))
    made.results.seconds = time.monotonic() - begin
    return made.results


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

    def enqueue(self, systems: list[System], scale: Scale) -> None:
        with ExitStack() as stack:
            senders = [one for system in systems if (one := self._sender(system, stack))]
            for system, measure, values in turns.enqueue(senders, scale):
                self._found(Figure(system.name, measure, values), system, self.groups)
            for one in senders:
                if one.failure:
                    self._failed(one.system, f"enqueue: {one.failure}")

    def _sender(self, system: System, stack: ExitStack) -> turns.Sender | None:
        one, folder = stack.enter_context(server.running())
        self.results.server = one.version
        place = Place(system, self._programs(system), one.url, folder)
        try:
            return turns.Sender(place, stack.enter_context(sending(place)))
        except Failed as error:
            self._failed(system, f"enqueue: {error}")
            return None

    def round(self, system: System, without: frozenset[str]) -> None:
        groups = self.groups - without
        for needed, part in PARTS:
            if groups.intersection(needed):
                self.part(system, part, groups)

    def part(self, system: System, part: Callable[[Bench], Found], groups: frozenset[str] = frozenset()) -> None:
        with server.running() as (one, folder):
            self.results.server = one.version
            place = Place(system, self._programs(system), one.url, folder)
            bench = Bench(one, place, self._scale, groups.__contains__)
            try:
                for name, values in part(bench):
                    self._found(Figure(system.name, name, values), system, groups or self.groups)
            except Failed as error:
                self._failed(system, f"{part.__name__.replace('_', ' ')}: {error}")

    def _found(self, found: Figure, system: System, groups: frozenset[str]) -> None:
        if found.measure.partition(".")[0] in groups:
            figure = self.results.add(found)
            spread = f"  ±{figure.spread:.0%}" if len(figure.values) > 1 else ""
            self._say(f"{system.title:16}{MEASURES[figure.measure].title:50}{figure!s:>20}{spread}")

    def _failed(self, system: System, text: str) -> None:
        self.results.note(system.name, text)
        self._say(f"{system.title:16}{text}")
