"""Calls that share a round trip, and not their failures."""

from typing import Any

from penstock.engine.link import Call, Link
from penstock.errors import SchemaMismatch, Unavailable


async def together_or_apart(link: Link, calls: list[Call[Any]]) -> list[Any]:
    """The raw answers, in one round trip. If one of them fails for good, each is sent alone: its error is its answer.

    An error that is not one call's alone (no server, another layout) is raised.
    """
    try:
        return await link.together(*calls)
    except (Unavailable, SchemaMismatch):
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, it is told to who asked for this call)
        if len(calls) == 1:
            return [error]
        return [await _alone(link, call) for call in calls]


async def _alone(link: Link, call: Call[Any]) -> Any:
    try:
        (answer,) = await link.together(call)
    except (Unavailable, SchemaMismatch):
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, it is told to who asked for this call)
        return error
    return answer
