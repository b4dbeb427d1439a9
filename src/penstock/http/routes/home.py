"""The page for people at `/`: queues, workers, the latest failures and links to the API.

Only `routes/session.py` knows it, where the link that has a token leads: the dashboard replaces it.
"""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

from penstock.api.job import failure, moment
from penstock.api.program import Program
from penstock.engine.read.statistics import Statistics
from penstock.http.contents import hide_reason
from penstock.http.principal import Principal
from penstock.http.route import RequestContext
from penstock.http.routes.queues import all_queues
from penstock.http.routes.workers import all_workers
from penstock.model.header import STATES

_MAX_FAILURES: Final = 10
_API_LISTS: Final = ("queues", "batches", "lanes", "schedules", "workers", "tasks")


class _Link(NamedTuple):
    """A cell that leads somewhere; the path is below the service's root path."""

    text: str
    path: str


class _Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | _Link]]


async def show_home(context: RequestContext) -> Response:
    program, root_path = context.program, context.request.scope.get("root_path", "").rstrip("/")
    tables = [await _queues(program), await _workers(program), await _failures(program, context.principal)]
    return HTMLResponse(_render(program.name, tables, root_path), headers=_HEADERS)


# What it shows


async def _queues(program: Program) -> _Table:
    rows = [
        [
            queue.name,
            "paused" if queue.paused else "",
            *(f"{queue.counts[state]:,}" for state in STATES),
            str(queue.workers),
        ]
        for queue in await all_queues(program)
    ]
    return _Table("Queues", ("queue", "", *STATES, "workers"), rows)


async def _workers(program: Program) -> _Table:
    rows = [
        [
            worker.name + (" (stalled)" if worker.stalled else ""),
            str(worker.slots),
            str(len(worker.runs)),
            ", ".join(worker.queues),
            worker.version,
        ]
        for worker in await all_workers(program)
    ]
    return _Table("Workers", ("worker", "slots", "busy", "queues", "version"), rows)


async def _failures(program: Program, principal: Principal) -> _Table:
    """Shows only the type of an error: its message may contain secrets."""
    rows: list[list[str | _Link]] = []
    for job_id in await Statistics(program.client().engine.script_client).latest_dead(_MAX_FAILURES):
        record = await program.client().views.job(job_id)
        if record is not None:
            error_type = failure(record.attempts[-1]).type if record.attempts else ""
            when = moment(record.header.since).isoformat(sep=" ", timespec="seconds")
            job = _Link(job_id, f"/api/v1/jobs/{quote(job_id, safe='')}")
            reason = record.header.reason if principal.reads_contents else hide_reason(record.header.reason)
            rows.append([when, job, record.header.task, f"{reason} {error_type}"])
    return _Table("Latest failures", ("when", "job", "task", "why"), rows)


# How it looks

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; vertical-align: top }
td.n { font-variant-numeric: tabular-nums }
code { overflow-wrap: anywhere }
"""


def _render(title: str, tables: Sequence[_Table], root_path: str) -> str:
    name = escape(title)
    body = "".join([f"<h1>{name}</h1>", *(_render_table(table, root_path) for table in tables), _links(root_path)])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="10">'
        f"<title>{name} · Penstock</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def _render_table(table: _Table, root_path: str) -> str:
    if not table.rows:
        return f"<h2>{table.title}</h2><p>none</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td class=n>{_render_cell(cell, root_path)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    return f"<h2>{table.title}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _render_cell(cell: str | _Link, root_path: str) -> str:
    if isinstance(cell, _Link):
        return f'<a href="{escape(root_path + cell.path)}"><code>{escape(cell.text)}</code></a>'
    return escape(cell)


def _links(root_path: str) -> str:
    paths = (*(f"/api/v1/{name}" for name in _API_LISTS), "/metrics", "/openapi.json")
    links = [f'<a href="{escape(root_path + path)}">{path}</a>' for path in paths]
    return f"<p>{' · '.join(links)}</p>"
