"""Lanes and locks of jobs whose sender may not set limits: such a job joins lanes as they are, and leaves none.

What the job that came last says of a lane counts for all jobs in it, so a lane without a limit would take one away.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from penstock.api.program import Program
from penstock.api.task import Task
from penstock.engine.engine import NewJob
from penstock.engine.keys import SEPARATOR
from penstock.engine.read.lane_views import LaneViews
from penstock.http.problems import Refused
from penstock.http.schemas.requests import JobRequest, LaneRequest

_SETTINGS: Final = ("limit", "rate", "burst", "ordered", "on_dead")
_AS_DECLARED: Final = "?"  #: instead of a limit: `keep_declared_lanes` fills in what the server knows
_NOTHING: Final = SEPARATOR * 3  #: no limit, rate, burst or kind
_RIGHT: Final = "this needs the right to set limits (limits=True)"


def lanes_as_declared(
    program: Program, base: Task[..., Any, Any], request: JobRequest, own: Sequence[str], asked: Sequence[str]
) -> list[str]:
    """The lanes of a job, each as the code declares it.

    `own` are those that the task has by its code, `asked` those that the request leads to, both as headers have them.
    """
    _check_settings(request)
    if request.cost is not msgspec.UNSET and request.cost < base.options.cost:
        raise Refused("right", f"cost={request.cost}: the code says {base.options.cost}; {_RIGHT} to be less")
    by_name = {_name(spec): spec for spec in own}
    if left := by_name.keys() - set(map(_name, asked)):
        names = ", ".join(sorted(left))
        raise Refused("right", f"the job would leave {names}, which its task is in: name it, too, or {_RIGHT}")
    return [_declared_in_code(program, spec, by_name) for spec in asked]


async def keep_declared_lanes(program: Program, jobs: Sequence[NewJob]) -> list[NewJob]:
    """The same jobs; a lane that this code does not know is as it was declared last, by whatever code."""
    unknown = {_name(spec) for job in jobs for spec in job.header.lanes if _is_unknown(spec)}
    if not unknown:
        return list(jobs)
    declared = await LaneViews(program.client().engine.script_client).declared(sorted(unknown))
    return [_with_declared(job, declared) for job in jobs]


def _check_settings(request: JobRequest) -> None:
    lanes = [] if request.lane is msgspec.UNSET else request.lane
    for lane in lanes if isinstance(lanes, list) else [lanes]:
        plain = LaneRequest(lane.name)
        for name in _SETTINGS:
            if getattr(lane, name) != getattr(plain, name):
                raise Refused("right", f"lane {lane.name!r}: {name}: {_RIGHT}; without it, give the name only")


def _declared_in_code(program: Program, spec: str, own: dict[str, str]) -> str:
    name, cost = _name(spec), spec.rpartition(SEPARATOR)[2]
    if not name.startswith("lane:"):
        return spec
    if name in own:
        return f"{own[name].rpartition(SEPARATOR)[0]}{SEPARATOR}{cost}"
    for task in program.tasks.values():
        for lane in task.options.lane:
            if _template(lane.name).fullmatch(name.removeprefix("lane:")):
                return replace(lane, name=name.removeprefix("lane:")).spec(int(cost))
    return SEPARATOR.join((name, _AS_DECLARED, cost))


@lru_cache(maxsize=1024)
def _template(text: str) -> "re.Pattern[str]":
    """What a template such as `tenant:{tenant}` may become."""
    parts = [
        re.escape(literal) + ("" if field is None else ".*") for literal, field, *_ in string.Formatter().parse(text)
    ]
    return re.compile("".join(parts), re.DOTALL)


def _with_declared(job: NewJob, declared: dict[str, str]) -> NewJob:
    def known(spec: str) -> str:
        name, _, cost = spec.split(SEPARATOR) if _is_unknown(spec) else ("", "", "")
        return SEPARATOR.join((name, declared.get(name) or _NOTHING, cost)) if name else spec

    header = msgspec.structs.replace(job.header, lanes=[known(spec) for spec in job.header.lanes])
    return NewJob(job.id, header, job.payload)


def _name(spec: str) -> str:
    return spec.partition(SEPARATOR)[0]


def _is_unknown(spec: str) -> bool:
    return spec.split(SEPARATOR)[1:2] == [_AS_DECLARED]
