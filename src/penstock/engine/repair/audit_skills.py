"""The audit's rules for skills, which follow from what each worker registered.

Skills are the tasks that a worker knows and the queues that it serves. A set of skills lacks a task that it does not
know while another live worker of the same queue does; lease leaves the jobs of that task to the other one.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from penstock.engine.keys import SEPARATOR

MAX_COMPARED: Final = 50  #: sets of skills that are compared


class Skills(NamedTuple):
    tasks: tuple[str, ...]
    queues: tuple[str, ...]

    @property
    def name(self) -> str:
        text = SEPARATOR.join((*self.tasks, "", *self.queues))
        return hashlib.sha1(text.encode()).hexdigest()[:12]  # noqa: S324  (as the scripts name it)

    def lacks(self, others: "list[Skills]") -> set[tuple[str, str]]:
        """The tasks that this set lacks: pairs of a queue, or *, and a task."""
        return {
            (queue, task)
            for other in others
            for task in set(other.tasks) - set(self.tasks)
            for queue in other.queues
            if queue == "*" or not {"*", queue}.isdisjoint(self.queues)
        }


def check_skills(
    nodes: Mapping[bytes, bytes], entries: set[bytes], meta: Mapping[bytes, bytes]
) -> Iterator[tuple[str, str, str]]:
    """Rule, subject and text of each finding."""
    of_workers = {worker.decode(errors="replace"): skills for worker, raw in nodes.items() if (skills := _read(raw))}
    expected = {f"{skills.name}{SEPARATOR}{worker}" for worker, skills in of_workers.items()}
    for entry in expected ^ {entry.decode(errors="replace") for entry in entries}:
        yield "skills", entry, "does not agree with what the live workers said"
    sets = list({skills.name: skills for skills in of_workers.values()}.values())
    compared = len(sets) <= MAX_COMPARED
    wanted = {f"skills{SEPARATOR}{worker}": skills.name for worker, skills in of_workers.items()}
    lacks = {f"lacks{SEPARATOR}{skills.name}": skills.lacks(sets) for skills in sets if compared and skills.lacks(sets)}
    fields = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in meta.items()}
    sets_stored = {name: value for name, value in fields.items() if name.startswith(f"skills{SEPARATOR}")}
    for name in dict(sets_stored.items() ^ wanted.items()):
        yield "skills", name, f"is noted as {sets_stored.get(name)}, and should be {wanted.get(name)}"
    if compared:
        lacks_stored = {name: _pairs(value) for name, value in fields.items() if name.startswith(f"lacks{SEPARATOR}")}
        for name in [name for name in lacks_stored.keys() | lacks.keys() if lacks_stored.get(name) != lacks.get(name)]:
            yield "lacks", name, f"is noted as {lacks_stored.get(name)}, and should be {lacks.get(name)}"
    if (fields.get("uneven", "") == "1") != bool(lacks):
        yield "uneven", "meta", f"is {fields.get('uneven')!r}, but {len(lacks)} sets of skills lack something"


def _read(raw: bytes) -> Skills | None:
    """The skills that a worker registered; None if it named no tasks, because then it is given any job."""
    try:
        info, queues, *_ = msgspec.msgpack.decode(raw)
        named: Any = json.loads(info)["tasks"]
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError):
        return None
    tasks = [task for task in named if isinstance(task, str) and SEPARATOR not in task] if type(named) is list else []
    return Skills(tuple(tasks), tuple(queues)) if tasks else None


def _pairs(text: str) -> set[tuple[str, str]]:
    parts = text.split(SEPARATOR)
    return set(zip(parts[::2], parts[1::2], strict=False))
