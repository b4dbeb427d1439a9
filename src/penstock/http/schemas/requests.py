"""Types of request bodies and queries; they check what is sent, and OpenAPI is made from them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Duration = Annotated[float, Meta(ge=0)] | Annotated[str, Meta(pattern=r"^\d+(\.\d+)?\s*(ms|s|m|h|d)$")]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
TaskName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        description="Its full name, module:function, or the part after the colon if only one task has it.",
    ),
]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Priority = Annotated[int, Meta(ge=0, le=99)]
Cursor = Annotated[str, Meta(max_length=1024, description="The `next` of the page before.")]
Limit = Annotated[int, Meta(ge=1, le=500, description="How many at most.")]
Wait = Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for its end.")]
AnyState = Literal["", "scheduled", "held", "ready", "running", "done", "dead", "cancelled"]


class BackoffRequest(Struct, forbid_unknown_fields=True):
    """Waits between tries."""

    kind: Literal["exponential", "linear", "fixed"] = "exponential"
    base: Duration = "1s"
    cap: Duration | None = None
    jitter: bool = True


class LaneRequest(Struct, forbid_unknown_fields=True):
    """A lane that the job is in."""

    name: Name
    limit: Count | None = None
    rate: Annotated[str, Meta(max_length=64, description="Starts per time: 100/s, 5/m, 3/10s.")] | None = None
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    ordered: bool = False
    on_dead: Literal["continue", "hold"] = "continue"


class JobRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job to be stored: its task, the arguments, and options by their names."""

    task: TaskName
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    expires: Duration | UnsetType = UNSET
    retries: Annotated[int, Meta(ge=0, le=10_000)] | UnsetType = UNSET
    backoff: BackoffRequest | list[Duration] | UnsetType = UNSET
    timeout: Duration | UnsetType | None = UNSET
    lock: Name | list[Name] | UnsetType = UNSET
    lane: LaneRequest | list[LaneRequest] | UnsetType = UNSET
    cost: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    unique: Name | bool | UnsetType = UNSET
    id: Name | UnsetType = UNSET
    tags: list[Name] | UnsetType = UNSET
    keep_result: Duration | UnsetType = UNSET
    redact: list[Name] | UnsetType = UNSET


class RescheduleRequest(Struct, forbid_unknown_fields=True):
    """Another time for a job: one of the two."""

    delay: Duration | UnsetType = UNSET
    at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET


class QueueRequest(Struct, forbid_unknown_fields=True):
    """How many jobs of a queue may run at once, and how many may wait in it; null: any number."""

    limit: Count | UnsetType | None = UNSET
    max_size: Annotated[int, Meta(ge=0, le=1_000_000_000)] | UnsetType | None = UNSET


class LimitRequest(Struct, forbid_unknown_fields=True):
    """How many may run at once; null: as the code says."""

    limit: Count | None


class WaitQuery(Struct, forbid_unknown_fields=True):
    """For one job."""

    wait: Wait = 0
    explain: Annotated[bool, Meta(description="With a sentence on why it does not run.")] = False


class PageQuery(Struct, forbid_unknown_fields=True):
    """For lists."""

    cursor: Cursor = ""
    limit: Limit = 100


class DeadRequest(Struct, forbid_unknown_fields=True):
    """Which dead jobs: those that match all of these filters; without any, all of them."""

    queue: str = ""
    task: str = ""
    tag: str = ""
    error: Annotated[str, Meta(description="A part of the last error.")] = ""
    group: Annotated[str, Meta(description="Dead of this error: a `group` of /api/v1/dead/groups.")] = ""
    older_than: Annotated[str, Meta(description="In their state for longer than that: 10m, 2h, 3d.")] = ""
    newer_than: Annotated[str, Meta(description="In their state for less than that.")] = ""


class DeadQuery(DeadRequest, forbid_unknown_fields=True):
    """Which dead jobs, page by page."""

    cursor: Cursor = ""
    limit: Limit = 100


class JobsQuery(DeadQuery, forbid_unknown_fields=True):
    """Which jobs, in any state and of any batch unless they are given, page by page."""

    state: AnyState = ""
    batch: str = ""


class BatchRequest(Struct, forbid_unknown_fields=True):
    """A batch to be opened; `then` and `on_failure` are names of tasks that take its status."""

    name: Annotated[str, Meta(max_length=256)] = ""
    id: Annotated[str, Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    priority: Priority | None = None
    then: TaskName | None = None
    on_failure: TaskName | None = None
    parent: Annotated[str, Meta(max_length=100, description="The batch that it is a member of.")] = ""
    abandon_after: Duration = "24h"
    keep: Duration = "24h"


class BatchChange(Struct, forbid_unknown_fields=True):
    """Another priority or limit for a batch, or both."""

    priority: Priority | None = None
    limit: Count | None = None


class BatchesQuery(Struct, forbid_unknown_fields=True):
    """Which batches, page by page."""

    state: Literal["", "open", "sealed", "ended"] = ""
    name: str = ""
    cursor: Cursor = ""
    limit: Limit = 100


class BatchQuery(Struct, forbid_unknown_fields=True):
    """For one batch."""

    wait: Wait = 0


class MembersQuery(Struct, forbid_unknown_fields=True):
    """For the members of a batch: all, or those in one state."""

    state: AnyState = ""
    cursor: Cursor = ""
    limit: Limit = 100


class FinishedQuery(Struct, forbid_unknown_fields=True):
    """For the members of a batch in the order in which they finish."""

    cursor: Cursor = ""
    limit: Annotated[int, Meta(ge=1, le=100, description="How many at most.")] = 100
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for the next one.")] = 0


class CancelQuery(Struct, forbid_unknown_fields=True):
    """For cancelling a batch."""

    reason: Annotated[str, Meta(min_length=1, max_length=256, description="What its status says.")] = "cancelled"


class SessionRequest(Struct, forbid_unknown_fields=True):
    """A token for which a browser gets a session."""

    token: Annotated[str, Meta(min_length=1, max_length=1024)]


class HomeQuery(Struct, forbid_unknown_fields=True):
    """For the page for people."""

    token: Annotated[str, Meta(max_length=1024, description="That of the link that `penstock serve` printed.")] = ""


class EventsQuery(Struct, forbid_unknown_fields=True):
    """Which events: those that match all of these filters."""

    queue: str = ""
    job: str = ""
    kinds: Annotated[str, Meta(description="Verbs, such as complete,bury,reap.")] = ""
    since: Annotated[str, Meta(description="An event's id, or how long ago: 10m. Without it, from now on.")] = ""


class LaneQuery(Struct, forbid_unknown_fields=True):
    """For one lane."""

    kind: Annotated[Literal["lane", "lock"], Meta(description="Which of the two has this name.")] = "lane"


class NoQuery(Struct, forbid_unknown_fields=True):
    """Nothing may follow the question mark."""
