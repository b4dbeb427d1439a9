"""What goes over the wire: requests and answers, as the types that check them and that OpenAPI is made from."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.job import State

Duration = Annotated[float, Meta(ge=0)] | Annotated[str, Meta(pattern=r"^\d+(\.\d+)?\s*(ms|s|m|h|d)$")]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]


T = TypeVar("T")


# Requests


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
    rate: str | None = None
    burst: int | None = None
    ordered: bool = False
    on_dead: Literal["continue", "hold"] = "continue"


class JobRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job to be stored: its task, the arguments, and options by their names."""

    task: Name
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: Name | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=99)] | UnsetType = UNSET
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


class LimitRequest(Struct, forbid_unknown_fields=True):
    """How many may run at once; null: as the code says."""

    limit: Count | None


class WaitQuery(Struct, forbid_unknown_fields=True):
    """For one job."""

    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for its end.")] = 0
    explain: Annotated[bool, Meta(description="With a sentence on why it does not run.")] = False


class PageQuery(Struct, forbid_unknown_fields=True):
    """For lists."""

    cursor: Annotated[str, Meta(max_length=1024, description="The `next` of the page before.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500, description="How many at most.")] = 100


class LaneQuery(Struct, forbid_unknown_fields=True):
    """For one lane."""

    kind: Annotated[Literal["lane", "lock"], Meta(description="Which of the two has this name.")] = "lane"


class NoQuery(Struct, forbid_unknown_fields=True):
    """Nothing may follow the question mark."""


# Answers


class Page(Struct, Generic[T]):
    """Part of a list; `next` is the cursor of the part that follows, if one does."""

    items: list[T]
    next: str | None


class Problem(Struct, omit_defaults=True):
    """What went wrong and what to do (RFC 9457)."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"


class ErrorAnswer(Struct):
    """Why there is no result."""

    type: str
    message: str
    traceback: str = ""


class JobAnswer(Struct, omit_defaults=True):
    """A job. `created` says whether this very request made it; what is not known or not so is left out."""

    id: str
    state: State
    created: bool | UnsetType = UNSET
    task: str = ""
    queue: str = ""
    priority: int | UnsetType = UNSET
    reason: str = ""
    explain: str = ""
    attempt: int | UnsetType = UNSET
    retries: int | UnsetType = UNSET
    created_at: datetime | UnsetType = UNSET
    since: datetime | UnsetType = UNSET
    due: datetime | UnsetType = UNSET
    expires: datetime | UnsetType = UNSET
    started: datetime | UnsetType = UNSET
    finished: datetime | UnsetType = UNSET
    worker: str = ""
    cancelling: bool = False
    progress: tuple[float, float | None, str] | UnsetType = UNSET
    arguments: dict[str, Any] | UnsetType = UNSET
    tags: tuple[str, ...] = ()
    attempts: list["AttemptAnswer"] = []
    result: Any | UnsetType = UNSET
    error: ErrorAnswer | UnsetType = UNSET


class AttemptAnswer(Struct):
    """A failed try."""

    number: int
    outcome: str
    worker: str
    started: datetime
    ended: datetime
    error: ErrorAnswer


class Placed(Struct, omit_defaults=True):
    """What became of one job of an array: it is stored, or `problem` says why not."""

    id: str = ""
    state: str = ""
    created: bool | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class StateAnswer(Struct):
    """The state that a job is in now; `cancelling` is one that still runs."""

    id: str
    state: str


class QueueAnswer(Struct):
    """A queue."""

    name: str
    paused: bool
    limit: int | None
    workers: int  #: that serve it
    counts: dict[str, int]  #: state → how many jobs


class LaneAnswer(Struct):
    """A lane or a lock."""

    name: str
    kind: Literal["lane", "lock"]
    limit: int | None
    in_use: int
    waiting: int
    paused: bool
    set_by_hand: bool
    rate: str
    burst: int
    ordered: bool
    holders: list[str]
    conflict: str


class RunAnswer(Struct):
    """A job that a worker runs."""

    id: str
    task: str
    attempt: int
    since: datetime


class WorkerAnswer(Struct):
    """A live worker."""

    name: str
    host: str
    pid: int
    slots: int
    queues: list[str]
    since: datetime
    alive_until: datetime
    version: str
    code: str
    stalled: bool
    runs: list[RunAnswer]


class TaskAnswer(Struct):
    """A task that can be enqueued here, with its defaults and the JSON Schema of its arguments."""

    name: str
    queue: str
    priority: int
    retries: int
    timeout: float | None  #: seconds
    doc: str
    arguments: dict[str, Any]
