"""`penstock doctor`: checks settings, server and all that is stored; each finding says what to do."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from penstock.cli.exit_codes import Exit
from penstock.cli.filters import confirm, yes_option
from penstock.cli.help import examples
from penstock.cli.options import with_target
from penstock.cli.output import Printer, plural, print_fields, print_json, print_table
from penstock.cli.target import Target, run
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.engine.repair.doctor import Diagnosis, Doctor, examine, fix, repaired
from penstock.engine.transport.plain_commands import unavailable_on_error

_MAX_FINDINGS = 50  #: in a table


@click.command(
    epilog=examples(
        "penstock doctor",
        "penstock doctor --fix --yes",
        "penstock doctor --namespace shop -o json || alert",
    )
)
@click.option("--fix", "do_fix", is_flag=True, help="Rebuild from the jobs' headers what can be rebuilt.")
@yes_option
@with_target
def doctor(target: Target, printer: Printer, *, do_fix: bool, yes: bool) -> None:
    """Check server, settings, code, and all that is stored.

    It reads all jobs, in pages, also while they run, and changes nothing without --fix. Exit code 8 if something is
    wrong; advice alone is no fault.
    """
    client, app = target.open()
    tasks = frozenset(app.tasks) if app else frozenset[str]()
    report = run(client, lambda client: _report(client, tasks))
    if do_fix and any(finding["fixable"] for finding in report["findings"]):
        if not printer.is_json:
            _print(report)
        number = sum(finding["fixable"] for finding in report["findings"])
        confirm(f"{plural(number, 'finding', 'findings')} can be repaired. Go on?", yes=yes)
        report = run(client, lambda client: _fix(client, tasks))
    if printer.is_json:
        print_json(report)
    else:
        _print(report)
    if not report["healthy"]:
        click.get_current_context().exit(Exit.UNHEALTHY)


async def _report(client: Client, tasks: frozenset[str]) -> dict[str, Any]:
    with unavailable_on_error(client.endpoint):
        return await _as_json(client, await examine(client.engine, tasks), ())


async def _fix(client: Client, tasks: frozenset[str]) -> dict[str, Any]:
    with unavailable_on_error(client.endpoint):
        before = await examine(client.engine, tasks)
        await fix(client.engine)
        after = await examine(client.engine, tasks)
        return await _as_json(client, after, repaired(before, after))


async def _as_json(client: Client, diagnosis: Doctor, fixed: Sequence[Diagnosis]) -> dict[str, Any]:
    readable = not any(finding.rule in {"schema", "kind"} for finding in diagnosis.findings)
    counts = await client.views.counts() if readable else {}
    return {
        "healthy": diagnosis.healthy,
        "namespace": client.engine.keys.namespace,
        "server": diagnosis.server.get("name", ""),
        "settings": {name: value for name, value in diagnosis.server.items() if name != "name"},
        "jobs": sum(number for states in counts.values() for number in states.values()),
        "workers": len(await client.views.workers()) if readable else 0,
        "counts_checked": diagnosis.still,
        "findings": [asdict(finding) for finding in diagnosis.findings if finding.level == "wrong"],
        "advice": [asdict(finding) for finding in diagnosis.findings if finding.level == "advice"],
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
        *([("sealed with", _keys(settings["keys"]))] if settings.get("keys") else []),
        ("audit", plural(len(wrong), "finding", "findings") if wrong else "clean"),
    ]
    print_fields(fields)
    if not report["counts_checked"]:
        echo("jobs were moving all the time: totals were not compared", err=True)
    _print_findings("repaired", report["fixed"])
    _print_findings("wrong", wrong)
    _print_findings("advice", report["advice"])


def _keys(keys: dict[str, int]) -> str:
    return ", ".join(f"{name} ({plural(number, 'value', 'values')})" for name, number in keys.items())


def _print_findings(title: str, findings: list[dict[str, Any]]) -> None:
    """Print what is wrong, where and what to do, up to a number of findings."""
    if not findings:
        return
    echo(f"\n{title}", bold=True)
    columns = ("rule", "subject", "text", "todo")
    print_table(columns, [[finding[name] for name in columns] for finding in findings[:_MAX_FINDINGS]])
    if len(findings) > _MAX_FINDINGS:
        echo(f"and {len(findings) - _MAX_FINDINGS} more: -o json has all", err=True)
