"""`GET /`: one page with queues, workers, the latest failures and links to the API."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

from penstock.api.job import failure, moment
from penstock.api.program import Program
from penstock.engine.read.statistics import Statistics
from penstock.http.route import RequestContext, Route
from penstock.http.routes import queues, workers
from penstock.model.header import STATES

_FAILURES: Final = 10
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
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


async def get(ask: RequestContext) -> Response:
    base = ask.request.scope.get("root_path", "").rstrip("/")
    program = ask.program
    parts = [
        f"<h1>{escape(program.name)}</h1>",
        *_table("Queues", ("queue", "", *STATES, "workers"), await _queues(program)),
        *_table("Workers", ("worker", "slots", "busy", "queues", "version"), await _workers(program)),
        *_table("Latest failures", ("when", "job", "task", "why"), await _failures(program, base)),
        _links(base),
    ]
    return HTMLResponse(_page(program.name, parts), headers=_HEADERS)


async def _queues(program: Program) -> list[list[str]]:
    return [
        [
            escape(row.name),
            "paused" if row.paused else "",
            *(f"{row.counts[state]:,}" for state in STATES),
            str(row.workers),
        ]
        for row in await queues.rows(program)
    ]


async def _workers(program: Program) -> list[list[str]]:
    return [
        [
            escape(row.name) + (" (stalled)" if row.stalled else ""),
            str(row.slots),
            str(len(row.runs)),
            escape(", ".join(row.queues)),
            escape(row.version),
        ]
        for row in await workers.rows(program)
    ]


async def _failures(program: Program, base: str) -> list[list[str]]:
    """Only what kind of error it was: its text may have secrets in it."""
    found = []
    for job_id in await Statistics(program.client().engine.script_client).latest_dead(_FAILURES):
        record = await program.client().views.job(job_id)
        if record is not None:
            kind = failure(record.attempts[-1]).type if record.attempts else ""
            link = f'<a href="{escape(base)}/api/v1/jobs/{quote(job_id, safe="")}"><code>{escape(job_id)}</code></a>'
            when = _moment(record.header.since)
            found.append([when, link, escape(record.header.task), escape(f"{record.header.reason} {kind}")])
    return found


def _moment(milliseconds: int) -> str:
    return moment(milliseconds).isoformat(sep=" ", timespec="seconds")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells are HTML already."""
    body = [f"<tr>{''.join(f'<td class=n>{cell}</td>' for cell in row)}</tr>" for row in rows]
    if not body:
        return [f"<h2>{title}</h2><p>none</p>"]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return [f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>", *body, "</tbody></table>"]


def _links(base: str) -> str:
    names = ("queues", "batches", "lanes", "schedules", "workers", "tasks")
    paths = (*(f"/api/v1/{name}" for name in names), "/metrics", "/openapi.json")
    shown = [f'<a href="{escape(base + path)}">{path}</a>' for path in paths]
    return f"<p>{' · '.join(shown)}</p>"


def _page(title: str, parts: Iterable[Any]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="10">'
        f"<title>{escape(title)} · Penstock</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


ROUTES: Final = [
    Route("GET", "/", get, "A page for people", answers={200: None}, media="text/html; charset=utf-8"),
]
