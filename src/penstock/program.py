"""What a worker needs to know of an app: its tasks, and what is wrapped around them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from penstock.context import JobContext
from penstock.hub import Hub
from penstock.schedule import Spec
from penstock.settings import Settings
from penstock.task import Task

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
Middleware = Callable[[JobContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]


@dataclass(slots=True)
class Program:
    """Grows while the app's modules are imported; workers only read it."""

    name: str
    settings: Settings
    hub: Callable[[], Hub]
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    tasks: dict[str, Task[..., Any, Any]] = field(default_factory=dict)
    schedules: dict[str, Spec] = field(default_factory=dict)
    middlewares: list[Middleware] = field(default_factory=list)
