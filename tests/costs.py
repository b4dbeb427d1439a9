"""The cost of scripts on the server, from `commandstats` and the slow log: the same with a million jobs as with few."""

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.engine.engine import Engine
from penstock.engine.scripts import load
from tests.servers import Server
from tests.stopwatch import Stopwatch

TOO_LONG_US = 20_000  #: microseconds that no script may take
SMALL, BIG = 1_000, 1_000_000  #: jobs stored when costs are compared
RUNS = ("cmdstat_evalsha", "cmdstat_fcall")  #: scripts, and functions
ROUNDS, PAGE = 30, 20  #: calls that are measured of each script, and jobs in each

Costs = dict[str, float]


class Meter:
    """Microseconds per call of each script."""

    def __init__(self, client: Any) -> None:
        self.costs: Costs = {}
        self._client = client

    async def once(self, verb: str, call: Awaitable[Any]) -> Any:
        """One of the calls of this verb."""
        before = await self._spent()
        answer = await call
        self.costs[verb] = self.costs.get(verb, 0) + (await self._spent() - before) / ROUNDS
        return answer

    async def timed(self, verb: str, step: Callable[[int], Awaitable[Any]]) -> list[Any]:
        """All calls of this verb, one after the other, and their answers."""
        before = await self._spent()
        answers = [await step(round_) for round_ in range(ROUNDS)]
        self.costs[verb] = (await self._spent() - before) / ROUNDS
        return answers

    async def _spent(self) -> int:
        stats = await self._client.info("commandstats")
        return sum(int(stats[name]["usec"]) for name in RUNS if name in stats)


async def best_of_three(engine: Engine, measure: Callable[[Meter], Awaitable[None]]) -> Costs:
    """What others on this machine took from a run does not count."""
    (runs,) = await in_turns((engine, measure))
    return runs


async def in_turns(*sides: tuple[Engine, Callable[[Meter], Awaitable[None]]]) -> list[Costs]:
    """The same of several on one server, in turns: what others take from this machine they take from all of them."""
    runs: list[list[Costs]] = [[] for _ in sides]
    for _ in range(3):
        for (engine, measure), results in zip(sides, runs, strict=True):
            meter = Meter(await engine.script_client.endpoint.client())
            await measure(meter)
            results.append(meter.costs)
    return [{verb: min(run[verb] for run in results) for verb in results[0]} for results in runs]


async def slow_scripts(engine: Engine, stopwatch: Stopwatch) -> list[str]:
    """Scripts that took too much of a CPU or, where nobody timed them, too long on the wall; says what each took.

    What a script took on the wall is printed beside it: where others want the CPUs, too, a few calls take longer.
    """
    client: Any = await engine.script_client.endpoint.client()
    late, slow = [], []
    for entry in await client.slowlog_get(1000):
        words = entry["command"].decode(errors="replace").split()
        if words[0] not in {"EVAL", "EVALSHA", "FCALL"}:
            continue
        lap = stopwatch.laps.get(entry["id"])
        late.append(f"{_verb(words[1])} {entry['duration'] / 1000:.1f} ms ({lap or 'not timed'})")
        if lap is None or lap.own > TOO_LONG_US:
            slow.append(late[-1])
    stats = await client.info("commandstats")
    calls = sum(int(stats[name]["calls"]) for name in RUNS if name in stats)
    print(f"{len(late)} of {calls:,} scripts took more than {TOO_LONG_US // 1000} ms on the wall: {late}")
    most = f"{stopwatch.longest / 1000:.1f} ms"
    print(f"{len(slow)} of them had a CPU for as long; a call, with what ran beside it, took at most {most} of one")
    return slow


def _verb(which: str) -> str:
    return next((name for name, script in load().items() if which in {script.sha, script.function}), "?")


async def slow_each_time(
    server: Server, engine: Engine, stopwatch: Stopwatch, again: Callable[[], Awaitable[None]]
) -> list[str]:
    """Those that took too long, if there are some each time that the same is done on a fresh server, thrice at most.

    A CPU, too, is slower at times: on some machines the same loop takes three to six times as long for half a second.
    What a script, or a table that grows, takes of itself is there again at the next time.
    """
    slow = await slow_scripts(engine, stopwatch)
    for _ in range(2):
        if not slow:
            break
        server.kill()  # flushed, it would still have to put together a million pieces of memory
        server.restart()
        stopwatch.reset()
        await again()
        slow = await slow_scripts(engine, stopwatch)
    return slow


def grown(small: Costs, big: Costs) -> Costs:
    """What takes twice as long or longer with the big number; says what each takes."""
    print()
    for verb, cost in small.items():
        print(f"{verb:10} {cost:8.1f} us at {SMALL:,}  {big[verb]:8.1f} us at {BIG:,}  {big[verb] / cost:5.2f} times")
    return {verb: cost for verb, cost in big.items() if cost >= 2 * small[verb]}
