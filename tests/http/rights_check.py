"""What schemathesis checks beside the description: no answer goes beyond the rights of who asked.

It runs in a process of its own, which loads this module by `$SCHEMATHESIS_HOOKS`.
"""

import json
import os
from typing import Any

import schemathesis

ME: dict[str, Any] = json.loads(os.environ["RIGHTS_ME"])  #: the answer of /api/v1/me; empty for nobody
SECRET = os.environ["RIGHTS_SECRET"]  #: what jobs contain
_LADDER = ("viewer", "operator", "admin")


@schemathesis.check
def within_rights(_ctx: Any, response: Any, case: Any) -> None:
    """The status is that of the table, and nothing is shown that is hidden from this sender."""
    needs = case.operation.definition.raw.get("x-needs")
    status, body = response.status_code, response.text
    assert ME.get("contents") or SECRET not in body, "contents are shown"
    if needs is None or status in {400, 414}:  # a probe, or no request that reached a route
        return
    if not ME:
        assert status == 401, f"nobody got {status}"
    elif not _may(needs):
        assert status == 403, f"{ME['role']} got {status} where {needs} is needed"
    else:
        assert status != 401
        is_bound = ME["queues"] != ["*"] or ME["tasks"] != ["*"] or not ME["limits"] or not ME["contents"]
        assert status != 403 or is_bound or ME["role"] == "enqueuer", body


def _may(needs: dict[str, Any]) -> bool:
    role = ME["role"]
    is_high_enough = role in _LADDER and _LADDER.index(role) >= _LADDER.index(needs["role"])
    return (
        (is_high_enough or (needs["enqueuer"] and role == "enqueuer"))
        and (ME["contents"] or not needs["contents"])
        and (ME["tasks"] == ["*"] or not needs["whole_queue"])
        and (ME["queues"] == ME["tasks"] == ["*"] or not needs["whole_app"])
    )
