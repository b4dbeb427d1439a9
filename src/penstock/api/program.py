"""An app as its workers see it: tasks, schedules, middlewares, lifespan."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.api.context import JobContext
from penstock.api.task import Task
from penstock.client.client import Client
from penstock.model.payload_codec import PayloadCodec
from penstock.model.schedule import ScheduleSpec
from penstock.model.settings import Settings

if TYPE_CHECKING:
    from penstock.worker.queue_stream import QueueStream

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
Middleware = Callable[[JobContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]


@dataclass(slots=True)
class Program:
    """Filled while the app's modules are imported; workers only read it."""

    name: str
    settings: Settings
    client: Callable[[], Client]
    open_stream: "Callable[[Program, str, int], QueueStream]"  #: passed in, as the worker's layer is above this one
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    tasks: dict[str, Task[..., Any, Any]] = field(default_factory=dict)
    schedules: dict[str, ScheduleSpec] = field(default_factory=dict)
    middlewares: list[Middleware] = field(default_factory=list)
    codecs: tuple[PayloadCodec, ...] = ()  #: what is done to arguments, results and texts before they are stored
