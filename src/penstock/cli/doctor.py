"""`penstock doctor`: settings, server, and an audit of what is stored; each finding with what to do."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from penstock.cli.exit_codes import Exit
from penstock.cli.filters import confirm, yes
from penstock.cli.help import examples
from penstock.cli.options import targeted
from penstock.cli.output import Printer, counted, print_fields, print_json, print_table
from penstock.cli.target import Target, run
from penstock.client.client import Client
from penstock.engine.repair.doctor import Diagnosis, Doctor, examine, fix, mended
from penstock.engine.transport.plain_commands import unavailable_on_error

_MOST = 50  #: findings that a table shows


@click.command(
    epilog=examples(
        "penstock doctor",
        "penstock doctor --fix --yes",
        "penstock doctor --namespace shop -o json || alert",
    )
)
@click.option("--fix", "mend", is_flag=True, help="Rebuild from the jobs' headers what can be rebuilt.")
@yes
@targeted
def doctor(target: Target, printer: Printer, *, mend: bool, yes: bool) -> None:
    """Check server, settings, code, and all that is stored.

    It reads all jobs, in pages, also while they run, and changes nothing without --fix. Exit code 8 if something is
    wrong; advice alone is no fault.
    """
    client, app = target.open()
    tasks = frozenset(app.tasks) if app else frozenset[str]()
    report = run(client, lambda found: _report(found, tasks))
    if mend and any(finding["fixable"] for finding in report["findings"]):
        if not printer.is_json:
            _print(report)
        number = sum(finding["fixable"] for finding in report["findings"])
        confirm(f"{counted(number, 'finding', 'findings')} can be mended. Go on?", sure=yes)
        report = run(client, lambda found: _fix(found, tasks))
    if printer.is_json:
        print_json(report)
    else:
        _print(report)
    if not report["healthy"]:
        click.get_current_context().exit(Exit.UNHEALTHY)


async def _report(client: Client, tasks: frozenset[str]) -> dict[str, Any]:
    with unavailable_on_error(client.endpoint):
        return await _described(client, await examine(client.engine, tasks), ())


async def _fix(client: Client, tasks: frozenset[str]) -> dict[str, Any]:
    with unavailable_on_error(client.endpoint):
        before = await examine(client.engine, tasks)
        await fix(client.engine)
        after = await examine(client.engine, tasks)
        return await _described(client, after, mended(before, after))


async def _described(client: Client, made: Doctor, fixed: Sequence[Diagnosis]) -> dict[str, Any]:
    readable = not any(finding.rule in {"schema", "kind"} for finding in made.findings)
    counts = await client.views.counts() if readable else {}
    return {
        "healthy": made.healthy,
        "namespace": client.engine.keys.namespace,
        "server": made.server.get("name", ""),
        "settings": {name: value for name, value in made.server.items() if name != "name"},
        "jobs": sum(number for states in counts.values() for number in states.values()),
        "workers": len(await client.views.workers()) if readable else 0,
        "counts_checked": made.still,
        "findings": [asdict(finding) for finding in made.findings if finding.level == "wrong"],
        "advice": [asdict(finding) for finding in made.findings if finding.level == "advice"],
        "fixed": [asdict(finding) for finding in fixed],
    }


def _print(report: dict[str, Any]) -> None:
    wrong, settings = report["findings"], report["settings"]
    fields = [
        ("namespace", report["namespace"]),
        ("server", f"{report['server']}, {settings.get('round_trip_ms', '?')} ms away"),
        ("settings", f"AOF {'on' if settings.get('aof') else 'off'}, {settings.get('eviction')}"),
        ("replicas", settings.get("replicas")),
        ("jobs", report["jobs"]),
        ("workers", report["workers"]),
        ("audit", counted(len(wrong), "finding", "findings") if wrong else "clean"),
    ]
    print_fields(fields)
    if not report["counts_checked"]:
        click.echo("jobs were moving all the time: totals were not compared", err=True)
    _print_findings("mended", report["fixed"])
    _print_findings("wrong", wrong)
    _print_findings("advice", report["advice"])


def _print_findings(title: str, findings: list[dict[str, Any]]) -> None:
    """What, where and what to do; of many the first."""
    if not findings:
        return
    click.secho(f"\n{title}", bold=True)
    columns = ("rule", "subject", "text", "todo")
    print_table(columns, [[finding[name] for name in columns] for finding in findings[:_MOST]])
    if len(findings) > _MOST:
        click.echo(f"and {len(findings) - _MOST} more: -o json has all", err=True)
