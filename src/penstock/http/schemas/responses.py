"""Types of responses, from which OpenAPI is made."""

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType

from penstock.http.principal import Role
from penstock.model.header import State

T = TypeVar("T")


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
    hidden: bool = False  #: arguments, result, messages and tracebacks are left out: the sender may not read contents


class AttemptAnswer(Struct):
    """A try that failed or was cancelled."""

    number: int
    outcome: str
    worker: str
    started: datetime
    ended: datetime
    error: ErrorAnswer


class EnqueueResult(Struct, omit_defaults=True):
    """What became of one job of an array: it is stored, or `problem` says why not."""

    id: str = ""
    state: str = ""
    created: bool | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class StateAnswer(Struct):
    """The state that a job is in now; `cancelling` is one that still runs."""

    id: str
    state: str


class LineAnswer(Struct):
    """A line that an attempt wrote."""

    at: datetime
    attempt: int
    level: str
    text: str


class LogAnswer(Struct):
    """The last lines of a job, and how many before them are no longer kept."""

    gone: int
    lines: list[LineAnswer]


class ChangedAnswer(Struct):
    """How many jobs an action changed; with `more` its time was over, and asking again goes on."""

    changed: int
    more: bool


class GroupAnswer(Struct):
    """Dead jobs whose errors are the same."""

    group: str
    count: int
    first: datetime
    last: datetime
    sample: str  #: the one that died last
    task: str
    queue: str
    reason: str
    type: str
    message: str


class QueueAnswer(Struct):
    """A queue."""

    name: str
    paused: bool
    limit: int | None  #: how many of its jobs may run at once
    max_size: int | None  #: how many may wait in it
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


class BatchAnswer(Struct):
    """A batch: total = done + dead + cancelled + pending."""

    id: str
    name: str
    state: Literal["open", "sealed", "ended"]
    total: int
    done: int
    dead: int
    cancelled: int
    pending: int
    open: bool  #: it takes more members
    reason: str  #: why it was cancelled; empty if it was not
    generation: int  #: 1, and one more each time that a member ran again after its end
    parent: str  #: the batch that it is in, or nothing
    priority: int | None
    created: datetime
    ended: datetime | None
    running: int | UnsetType = UNSET  #: how many of its own members run at this moment


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


class MeAnswer(Struct):
    """Who asks, what they may do, and where they are."""

    name: str
    role: Role
    contents: bool  #: may read arguments, results, errors and logs
    limits: bool  #: may set limits and rates with a job
    queues: list[str]  #: patterns of the queues to use
    tasks: list[str]
    namespace: str
    version: str  #: of Penstock
    server: str  #: where the jobs are stored, without secrets; empty for those who are bound to queues or tasks
    base: str  #: the path under which this service is
    sign_out: str | None  #: the path to DELETE to end this session; null if there is none
