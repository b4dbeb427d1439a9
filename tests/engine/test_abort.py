"""Every script is stopped at its n-th redis.call, for all n. Lua does not roll back, so the writes before it stay.

A slot that is being moved can do this to a script. Afterwards the audit is clean, or clean after one pass of reconcile;
no job is lost, and the call can be sent again.
"""

from typing import Any

import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from penstock.engine.scripts import load
from penstock.engine.transport.script_client import ScriptCall
from penstock.errors import PenstockError
from tests.conftest import Clock, namespace, open_engine
from tests.engine.scenarios import SCENARIOS
from tests.servers import Server


def test_every_script_has_a_scenario() -> None:
    more = {"enqueue_single", "enqueue_page", "enqueue_pushed", "lease_uneven", "lease_of_many_queues"}
    assert set(SCENARIOS) == {*load(), *more, "complete_below_a_limit", "prune_of_names"}


#: The scripts are the same on a cluster: there, others than these take their turn in the long run.
ON_CLUSTER = {
    "enqueue",
    "enqueue_single",
    "enqueue_page",
    "enqueue_pushed",
    "lease",
    "lease_uneven",
    "complete",
    "reap",
    "cancel",
    "tick",
    "seal_batch",
}
CASES = [
    pytest.param(where, verb, marks=pytest.mark.long if where == "cluster" and verb not in ON_CLUSTER else ())
    for where in ("single", "cluster")
    for verb in sorted(SCENARIOS)
]


@pytest.mark.parametrize(("where", "verb"), CASES)
async def test_a_script_stopped_anywhere_loses_nothing_and_is_repaired_in_one_pass(
    request: pytest.FixtureRequest, where: str, verb: str
) -> None:
    clock = Clock()
    server: Server = request.getfixturevalue(where)
    engine = open_engine(server.url, namespace(), clock)
    stop = 0
    try:
        while await _stopped(engine, clock, verb, stop + 1):
            stop += 1
    finally:
        await engine.script_client.endpoint.aclose()
    assert stop > 0


async def _stopped(engine: Engine, clock: Clock, verb: str, stop: int) -> bool:
    """Was the script stopped at this call? Afterwards everything is mended, sent again, and in order."""
    client = await engine.script_client.endpoint.client()
    call = await SCENARIOS[verb](engine, clock)
    before = {job_id async for job_id, header in Views(engine).headers() if not header.compact}
    engine.script_client.stop_at = stop
    stopped = await _fails(call)
    engine.script_client.stop_at = 0
    if await audit(engine):
        await reconcile(engine)
    assert await audit(engine) == [], f"{verb} stopped at {stop}"
    after = {job_id async for job_id, _ in Views(engine).headers()}
    assert before <= after, f"{verb} stopped at {stop}"
    await call
    assert await audit(engine) == [], f"{verb} stopped at {stop} and sent again"
    await client.delete(*engine.all_keys())
    return stopped


async def _fails(call: ScriptCall[Any]) -> bool:
    try:
        await call
    except PenstockError as error:
        if "stopped at call" not in str(error):
            raise
        return True
    return False
