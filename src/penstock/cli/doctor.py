"""`penstock doctor`: settings, server, and an audit of what is stored."""

from typing import Any

import click

from penstock.cli.exits import Exit
from penstock.cli.helps import examples
from penstock.cli.options import targeted
from penstock.cli.output import Printer, print_fields, print_json, print_table
from penstock.cli.target import Target, run
from penstock.engine.audit import Finding, audit
from penstock.hub import Hub

_TRIES = 3
_COUNTED = ("counts", "conservation")  #: rules that need a moment in which nothing moves


@click.command(
    epilog=examples(
        "penstock doctor",
        "penstock doctor --namespace shop -o json || alert",
    )
)
@targeted
def doctor(target: Target, printer: Printer) -> None:
    """Check settings, server and every invariant of what is stored.

    It reads all jobs and changes nothing. Exit code 8 if something is wrong.
    """
    report = run(target.open_hub(), _examine)
    if printer.is_json:
        print_json(report)
    else:
        _print(report)
    if not report["healthy"]:
        click.get_current_context().exit(Exit.UNHEALTHY)


async def _examine(hub: Hub) -> dict[str, Any]:
    client: Any = await hub.endpoint.client()
    info = await client.info("server")
    findings, still = await _audit(hub)
    counts = await hub.views.counts()
    return {
        "healthy": not findings,
        "namespace": hub.engine.keys.namespace,
        "server": f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}",
        "jobs": sum(number for states in counts.values() for number in states.values()),
        "workers": len(await hub.views.workers()),
        "counts_checked": still,
        "findings": [finding._asdict() for finding in findings],
    }


async def _audit(hub: Hub) -> tuple[list[Finding], bool]:
    """What is wrong, and whether nothing moved meanwhile.

    An audit reads in pages. On a busy system jobs move between them, and a finding counts only if it stays; totals can
    be compared only in a quiet moment.
    """
    lasting: dict[tuple[str, str], Finding] | None = None
    for _ in range(_TRIES):
        before = await hub.views.last_event()
        found = {finding[:2]: finding for finding in await audit(hub.engine)}
        if not found or await hub.views.last_event() == before:
            return list(found.values()), True
        lasting = {key: found[key] for key in found if lasting is None or key in lasting}
    return [finding for finding in (lasting or {}).values() if finding.rule not in _COUNTED], False


def _print(report: dict[str, Any]) -> None:
    fields = ("namespace", "server", "jobs", "workers")
    findings = report["findings"]
    verdict = f"{len(findings)} findings" if findings else "clean"
    print_fields([*((name, report[name]) for name in fields), ("audit", verdict)])
    if not report["counts_checked"]:
        click.echo("jobs were moving all the time: totals were not compared", err=True)
    if findings:
        click.echo()
        print_table(("rule", "subject", "text"), [tuple(finding.values()) for finding in findings])
        click.echo("\npenstock.engine.mend.reconcile rebuilds from the headers of the jobs what was lost", err=True)
