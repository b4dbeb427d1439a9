"""`docs/performance.md` and its plots, and the table for a terminal, from what a run found."""

from pathlib import Path
from typing import Final

from benchmarks.figures import MEASURES, Results
from benchmarks.goals import outcomes
from benchmarks.plots import OTHERS, OURS, YARDSTICK, Bar, bars
from benchmarks.systems import BARE, PENSTOCK, SYSTEMS, System

#: What is between these lines of the page is written by the harness; the rest is kept.
BEGIN: Final = "<!-- measured: written by `python -m benchmarks page` -->"
END: Final = "<!-- end of what is measured -->"

TABLES: Final = (
    ("Draining, jobs/s", ("drain.async", "drain.thread", "drain.payload", "drain.locked", "drain.batch", "drain.two")),
    ("Enqueueing, jobs/s", ("enqueue.sync", "enqueue.async", "enqueue.callers", "enqueue.bulk")),
    ("Time", ("latency.p50", "latency.p99", "lateness.p50", "lateness.p99", "crash.return")),
    ("Cost of a job", ("cost.commands", "cost.bytes", "cost.worker", "cost.server", "memory.job")),
    ("A worker", ("idle.commands", "idle.cpu", "start.seconds", "start.memory")),
)
PLOTS: Final = (
    ("drain.async", "Draining `async def` no-op jobs, one worker process", False),
    ("drain.thread", "Draining `def` no-op jobs in threads, one worker process", False),
    ("enqueue.bulk", "Enqueueing in bulk", False),
    ("enqueue.callers", "Enqueueing by 100 concurrent callers", False),
    ("latency.p50", "Idle latency, enqueue to start, p50", True),
    ("lateness.p99", "Lateness of delayed jobs, p99", True),
    ("memory.job", "Server memory per queued job, 100-byte payload", False),
)
FIRST: Final = f"""# Performance

{BEGIN}
{END}
"""
HOW: Final = """
Figures of one run on one machine compare with each other; alone they say little. To repeat them:

```
make bench          # Penstock beside the bare loop, about a minute
make bench-peers    # beside other job queues, too, about 20 minutes; writes this page
python -m benchmarks peers --only penstock,rq,arq --measure drain,latency
```

Every system has its own virtual environment with the newest versions, documented settings chosen for speed, and the
same server, fresh for each part: {server}, append-only file, fsync every second, not written anew meanwhile, memory
at hand (`glibc.malloc.tcache_count`) as the embedded server has it, on a loopback port. Where a peer's settings say
*tried*, a short trial of two repeats on a busy machine drained fastest with the value that is used; such a trial is
noisy, and Penstock's own `-c` was not tried this way. All systems are open at once, each on a server of its own, and
take turns of seconds: what a round trip takes on a machine like this changes with the minute, and with where its
scheduler has put both sides. Whoever waits for its turn idles. There are three rounds, with one repeat of each
measure: of two drains of each kind of job the faster one, the quantiles of a hundred idle latencies from five turns,
and of ten slices of enqueueing the fastest.
Each figure is the best of its repeats; ± is how far they lie apart, as a share of the largest. A job writes the
moment of its start into shared memory and does nothing else. Workers are warm and held still while the queue is
filled, then let go. The *bare loop* is the least that a job queue can do with a script: take 100 jobs, note who has
them, decode them, run each as a task, settle them with the next call; it knows no states, retries, events or counts,
and its lateness is that of an asyncio timer. Every measurement of Penstock ends with an audit of all that is stored.
"""


def terminal(results: Results) -> str:
    """The goals and the failures, for the terminal."""
    lines = ["", f"{'':44}{'Penstock':>18}  {'goal':42}{'ratio':>9}  reached"]
    for row in outcomes(results):
        if row.reached is not None:
            title = MEASURES[row.goal.measure].title
            lines.append(f"{title[:43]:44}{row.ours:>18}  {row.wanted:42}{row.ratio:>9}  {_word(reached=row.reached)}")
    lines += [f"{name}: {note}" for name, notes in results.notes.items() for note in notes]
    return "\n".join([*lines, f"{results.seconds:.0f} s in all, load {results.load:g} before"])


def write(results: Results, docs: Path) -> None:
    """Replace the measured part of the page, and its plots."""
    page = docs / "performance.md"
    text = page.read_text() if page.is_file() else FIRST
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{_measured(results)}\n{END}{after}")
    folder = docs / "performance"
    folder.mkdir(exist_ok=True)
    for measure, title, logarithmic in PLOTS:
        if drawn := _plot(results, measure, title, logarithmic=logarithmic):
            (folder / f"{measure.replace('.', '-')}.svg").write_text(drawn)


def _measured(results: Results) -> str:
    machine = f"{results.date}; {results.machine}, load {results.load:g} before the run, Python {results.python}, "
    machine += f"{results.server}; {results.seconds:.0f} s"
    parts = [HOW.format(server=results.server), f"\nMeasured {machine}.{_left_out(results)}\n", "\n## Goals\n"]
    parts.append(_goals(results))
    parts += [
        f"![{title.replace('`', '')}](performance/{measure.replace('.', '-')}.svg)\n"
        for measure, title, _ in PLOTS
        if any(figure.measure == measure for figure in results.figures)
    ]
    for title, measures in TABLES:
        parts += [f"\n## {title}\n", _table(results, measures)]
    return "\n".join([*parts, "\n## Versions and settings\n", _settings(results), _notes(results)])


def _left_out(results: Results) -> str:
    """The measures that this run left out."""
    measured = {figure.measure for figure in results.figures}
    missing = [measure.title for name, measure in MEASURES.items() if name not in measured]
    return f" Not part of this run: {'; '.join(missing)}." if missing else ""


def _goals(results: Results) -> str:
    lines = ["| | Penstock | goal | beside | ratio | reached |", "|---|---|---|---|---|---|"]
    for row in outcomes(results):
        title, reached = MEASURES[row.goal.measure].title, _word(reached=row.reached)
        lines.append(f"| {title} | {row.ours} | {row.wanted} | {row.other} | {row.ratio} | {reached} |")
    return "\n".join([*lines, ""])


def _table(results: Results, measures: tuple[str, ...]) -> str:
    shown = [name for name in measures if any(figure.measure == name for figure in results.figures)]
    titles = [f"{MEASURES[name].title} ({MEASURES[name].unit})".replace(" ()", "") for name in shown]
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(shown) + 1) + "|"]
    for system in _measured_systems(results):
        cells = [_cell(results, system.name, name) for name in shown]
        lines.append(f"| **{system.title}** | {' | '.join(cells)} |" if not system.is_peer else _row(system, cells))
    return "\n".join(lines)


def _row(system: System, cells: list[str]) -> str:
    return f"| {system.title} | {' | '.join(cells)} |"


def _cell(results: Results, system: str, measure: str) -> str:
    figure = results.get(system, measure)
    if figure is None:
        return "–"
    spread = f" ±{figure.spread:.0%}" if len(figure.values) > 1 else ""
    return f"{figure.best:,.{MEASURES[measure].digits}f}{spread}"


def _settings(results: Results) -> str:
    lines = ["| | version | settings |", "|---|---|---|"]
    lines += [
        f"| {system.title} | {results.versions.get(system.name, '–')} | {system.settings} |"
        for system in SYSTEMS
        if system.name in results.versions or system.name in results.notes
    ]
    return "\n".join(lines)


def _notes(results: Results) -> str:
    titles = {system.name: system.title for system in SYSTEMS}
    notes = [f"- {titles[name]}: {note}" for name, texts in results.notes.items() for note in texts]
    return "\n".join(["\nWhat could not be measured:\n", *notes]) if notes else ""


def _measured_systems(results: Results) -> list[System]:
    return [system for system in SYSTEMS if any(figure.system == system.name for figure in results.figures)]


def _plot(results: Results, measure: str, title: str, *, logarithmic: bool) -> str:
    rows = [
        Bar(system.title, figure.best, str(figure), _colour(system))
        for system in _measured_systems(results)
        if (figure := results.get(system.name, measure))
    ]
    if not rows:
        return ""
    more = MEASURES[measure].more_is_better
    note = ("more is better" if more else "less is better") + ("; logarithmic scale" if logarithmic else "")
    rows.sort(key=lambda bar: bar.value, reverse=more)
    return bars(title.replace("`", ""), note, rows, logarithmic=logarithmic)


def _colour(system: System) -> str:
    return {PENSTOCK.name: OURS, BARE.name: YARDSTICK}.get(system.name, OTHERS)


def _word(*, reached: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "not measured"}[reached]
