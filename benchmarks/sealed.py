"""What encryption costs: `python -m benchmarks.sealed`; what it costs those who do not use it: `… --before SRC`.

The first compares apps that differ in their codec alone, a round of each in turn on one server: rates of one process
that enqueues, then runs, and its CPU per job. `--before` compares the CPU per job of an app without a codec with that
of another version of the library, in whose `src` directory SRC is. `--instructions` counts instructions with valgrind
instead, for a machine that is never quiet: ten minutes.
"""

import argparse
import asyncio
import gc
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.server import running
from penstock import Penstock

ROUNDS = 9
JOBS = 4_000
SINGLE = 500  #: jobs that are enqueued one by one
COUNTED = (300, 900)  #: jobs whose instructions are counted: the difference is what each of them takes
ARGUMENTS = {"user": 7, "subject": "x" * 80}

Round = dict[str, float]


def codecs() -> dict[str, Any]:
    """The apps that are compared."""
    from penstock.contrib.encrypt import Compressed, Sealed  # noqa: PLC0415 - `--before` runs where there is none

    key = {"2026-11": os.urandom(32)}
    return {
        "plain": None,
        "Compressed": Compressed(),
        "Sealed": Sealed(key),
        "Sealed, errors, logs": Sealed(key, errors=True, logs=True),
    }


def make_app(url: str, codec: Any = None) -> Penstock:
    options = {} if codec is None else {"codec": codec}
    app = Penstock("bench-" + secrets.token_hex(4), url=url, **options)

    @app.task(name="noop")
    async def noop(user: int, subject: str) -> dict[str, Any]:
        return {"user": user, "length": len(subject)}

    @app.task(name="io")
    async def io(user: int, subject: str) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"user": user, "length": len(subject)}

    return app


async def one_round(app: Penstock) -> Round:
    """Rates in jobs a second, and CPU of this process in µs per job."""
    found: Round = {}
    for name in ("noop", "io"):
        task = app.tasks[name]
        calls = app.enqueue_many(task.call(**ARGUMENTS) for _ in range(JOBS))
        await _measured(found, f"enqueue_many, {name}", JOBS, calls)
        await _measured(found, f"run, {name}", JOBS, app.run_until_idle(concurrency=100))
    await _measured(found, "enqueue", SINGLE, _one_by_one(app))
    await app.run_until_idle(concurrency=100)
    return found


async def _one_by_one(app: Penstock) -> None:
    for _ in range(SINGLE):
        await app.tasks["noop"].enqueue(**ARGUMENTS)


async def _measured(found: Round, name: str, jobs: int, work: Awaitable[Any]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    await work
    found[f"{name}: jobs/s"] = jobs / (time.perf_counter() - wall)
    found[f"{name}: µs of CPU"] = (time.process_time() - cpu) / jobs * 1e6


async def forget(app: Penstock) -> None:
    client: Any = await app.client.endpoint.client()
    await client.delete(*app.client.engine.all_keys())


async def compare(url: str, report: Callable[[str], None]) -> None:
    """Every app in turn, so that the machine's mood is the same for all of them."""
    apps = {name: make_app(url, codec) for name, codec in codecs().items()}
    rounds: dict[str, list[Round]] = {name: [] for name in apps}
    for number in range(ROUNDS + 1):
        for name, app in apps.items():
            found = await one_round(app)
            await forget(app)
            if number:  # the first one warms up
                rounds[name].append(found)
    for app in apps.values():
        await app.aclose()
    for what in rounds["plain"][0]:
        report(f"\n{what}")
        for name in apps:
            value, share = _figure(what, rounds["plain"], rounds[name])
            report(f"  {name:<22} {value:10,.1f}   {share:7.1%} of plain")


def _figure(what: str, base: list[Round], rounds: list[Round]) -> tuple[float, float]:
    """A figure of many rounds, and its share of that of others: of rates the medians, of CPU the least of all rounds.

    Whatever else runs on the machine only adds to the CPU of a job.
    """
    if what.endswith("CPU"):
        value = min(one[what] for one in rounds)
        return value, value / min(one[what] for one in base)
    shares = [one[what] / other[what] for one, other in zip(rounds, base, strict=True)]
    return median(one[what] for one in rounds), median(shares)


async def probe(url: str) -> None:
    """A few rounds of a plain app, as JSON, in a process of its own."""
    app = make_app(url)
    rounds = [await one_round(app) for _ in range(3)][1:]
    await forget(app)
    await app.aclose()
    print(json.dumps({what: min(one[what] for one in rounds) for what in rounds[0]}))


def compare_versions(url: str, before: Path, report: Callable[[str], None]) -> None:
    """Both versions in turn, without a codec."""
    here = Path(__file__).parents[1]
    sources = {"before": before.resolve(), "now": here / "src"}
    rounds: dict[str, list[Round]] = {name: [] for name in sources}
    for number in range(ROUNDS):
        for name in sources if number % 2 else reversed(sources):
            path = os.pathsep.join(map(str, (sources[name], here)))
            command = [sys.executable, "-m", "benchmarks.sealed", "--probe", url]
            done = subprocess.run(
                command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True, cwd="/"
            )
            rounds[name].append(json.loads(done.stdout))
    for what in rounds["now"][0]:
        if what.endswith("CPU"):
            (old, _), (new, share) = (_figure(what, rounds["before"], rounds[name]) for name in sources)
            report(f"{what:<34} before {old:7.2f}   now {new:7.2f}   {share:7.1%}")


async def do(url: str, codec: str, phase: str, jobs: int) -> None:
    """Some work whose instructions are counted from outside."""
    gc.disable()  # when it runs depends on what was imported
    app = make_app(url, None if codec == "plain" else codecs()[codec])
    if phase == "enqueue":
        for _ in range(jobs):
            await app.tasks["noop"].enqueue(**ARGUMENTS)
    else:
        await app.enqueue_many(app.tasks["io" if phase == "run io" else "noop"].call(**ARGUMENTS) for _ in range(jobs))
        if phase != "enqueue_many":
            await app.run_until_idle(concurrency=100)
    await forget(app)
    await app.aclose()


def count_instructions(url: str, before: Path | None, report: Callable[[str], None]) -> None:
    here = Path(__file__).parents[1]
    sources = {"now, plain": (here / "src", "plain"), "now, Sealed": (here / "src", "Sealed")}
    if before:
        sources = {"before": (before.resolve(), "plain"), **sources}
    for phase in ("enqueue_many", "enqueue", "run", "run io"):
        first: float | None = None
        for name, (source, codec) in sources.items():
            few, many = (_instructions(url, source, codec, phase, jobs) for jobs in COUNTED)
            each = (many - few) / (COUNTED[1] - COUNTED[0])
            first = first or each
            report(f"{phase:<14} {name:<14} {each:10,.0f} instructions a job   {each / first:7.1%}")


def _instructions(url: str, source: Path, codec: str, phase: str, jobs: int) -> int:
    """Of a whole process, by callgrind."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    program = [sys.executable, "-m", "benchmarks.sealed", "--do", phase, "--codec", codec, "--jobs", str(jobs), url]
    path = os.pathsep.join(map(str, (source, Path(__file__).parents[1])))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PENSTOCK_DEADLINE": "120s"}
    done = subprocess.run([*valgrind, *program], env=environment, capture_output=True, text=True, check=True, cwd="/")
    return int(done.stderr.rpartition("Collected : ")[2].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sealed", description=__doc__)
    parser.add_argument("--before", type=Path, metavar="SRC", help="the src directory of another version")
    parser.add_argument("--instructions", action="store_true", help="count instructions, which takes valgrind")
    parser.add_argument("--probe", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("url", nargs="?", help=argparse.SUPPRESS)
    for name in ("--do", "--codec", "--jobs"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.do:
        asyncio.run(do(options.url, options.codec, options.do, int(options.jobs)))
        return
    if options.probe:
        asyncio.run(probe(options.probe))
        return
    with suppress(KeyboardInterrupt), running() as (server, _):
        if options.instructions:
            count_instructions(server.url, options.before, partial(print, flush=True))
        elif options.before:
            compare_versions(server.url, options.before, print)
        else:
            asyncio.run(compare(server.url, print))


if __name__ == "__main__":
    main()
