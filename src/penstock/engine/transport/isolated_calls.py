"""Calls that share a round trip, and not their failures."""

from typing import Any

from penstock.engine.transport.script_client import ScriptCall, ScriptClient
from penstock.errors import SchemaMismatch, Unavailable


async def send_isolated(script_client: ScriptClient, calls: list[ScriptCall[Any]]) -> list[Any]:
    """The raw answers, in one round trip. If one of them fails for good, each is sent alone: its error is its answer.

    An error that is not one call's alone (no server, another layout) is raised.
    """
    try:
        return await script_client.together(*calls)
    except (Unavailable, SchemaMismatch):
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, it is told to who asked for this call)
        if len(calls) == 1:
            return [error]
        return [await _alone(script_client, call) for call in calls]


async def _alone(script_client: ScriptClient, call: ScriptCall[Any]) -> Any:
    try:
        (answer,) = await script_client.together(call)
    except (Unavailable, SchemaMismatch):
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, it is told to who asked for this call)
        return error
    return answer
