"""Ticks: schedules that are due make their jobs. It needs none of the app's code: all of it is stored."""

import logging

from penstock.engine.answers import DueCron, DueCrons
from penstock.engine.engine import Engine
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import PenstockError
from penstock.model.schedule import plan

log = logging.getLogger("penstock.worker")


async def tick(engine: Engine, due: DueCrons) -> int:
    """See to schedules that are due; how many could be seen to. One that cannot does not stop the others."""
    calls = [(cron.id, call) for cron in due.crons if (call := _call(engine, cron, due.now)) is not None]
    if not calls:
        return 0
    answers = await engine.script_client.isolated([call for _, call in calls])
    words: dict[str, str] = {}
    for (schedule, call), raw in zip(calls, answers, strict=True):
        if isinstance(raw, Exception):
            log.error("schedule %s could not tick: %s; set it anew, or remove it", schedule, raw)
            words[schedule] = "alone"
        else:
            words[schedule] = call.decode(raw)[0]
    for schedule, word in words.items():
        if word == "orphaned":
            log.warning("schedule %s is in no live worker's code; it makes no more jobs until it is again", schedule)
    return sum(word != "alone" for word in words.values())


def _call(engine: Engine, cron: DueCron, now: int) -> ScriptCall[tuple[str, int]] | None:
    if cron.spec is None or cron.standing is None:
        log.error("schedule %s was written by another version and cannot be read here", cron.id)
        return None
    try:
        ticks = plan(cron.id, cron.spec, cron.standing.next, now)
    except (PenstockError, ValueError, OverflowError) as error:
        log.error("schedule %s cannot be reckoned with here: %s", cron.id, error)  # noqa: TRY400  (the text says it all)
        return None
    claimed = cron.standing.next if ticks.next != cron.standing.next else -1
    return engine.tick(cron.id, cron.spec, claimed, ticks)
