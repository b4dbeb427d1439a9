"""The app: its tasks and schedules, and the ways to enqueue, watch and run jobs."""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from penstock.api.batch import Batch
from penstock.api.batch_options import OnError, check_call, check_on_error, new_batch
from penstock.api.events import Events, Since
from penstock.api.job import Job, any_job
from penstock.api.lane import LaneControl
from penstock.api.map import map_rows
from penstock.api.program import Lifespan, Program
from penstock.api.queue import QueueControl
from penstock.api.retry_edit import retry_edited
from penstock.api.schedule import Schedule, ScheduleStatus, make_rule, make_spec, status_of
from penstock.api.selection import Selection, choose
from penstock.api.task import Call, Task, name_of
from penstock.client.client import Client
from penstock.client.pages import check_iterable, map_items
from penstock.engine.engine import NewBatch, NewJob
from penstock.engine.keys import Keys
from penstock.engine.read.dead_groups import DeadGroup, DeadGroups
from penstock.engine.transport.blocking import blocking, run_blocking
from penstock.errors import BadOption, PenstockError, UnknownTask
from penstock.model.durations import Duration, milliseconds
from penstock.model.lanes import Lane, lane_name, lock_spec
from penstock.model.options import Options, TaskOptions, queue_name, task_name, unknown
from penstock.model.payload_codec import PayloadCodec, checked_codecs
from penstock.model.schedule import CatchUp, Overlap, Rule, schedule_id
from penstock.model.settings import Settings, load
from penstock.server.urls import parse
from penstock.worker.queue_stream import QueueStream
from penstock.worker.worker import GRACE, Worker

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self, Unpack

    from penstock.http.access import Login
    from penstock.http.principal import Principal, Role
    from penstock.http.service import Service
    from penstock.http.trusted_header import Trust

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])
ScheduledTask = TypeVar("ScheduledTask", bound=Task[..., Any, Any])


class _Decorator:
    """`@app.task(...)`: keeps the parameter and result types of `def` and `async def` functions."""

    def __init__(self, app: "Penstock", name: str | None, options: TaskOptions) -> None:
        self._app, self._name, self._options = app, name, options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Task[..., Any, Any]:
        return self._app._register(function, self._name, self._options)  # noqa: SLF001  (its other half)


class Penstock:
    """A job queue: `app = Penstock("shop")`; the name is the namespace of everything it stores."""

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        lifespan: Lifespan | None = None,
        deadline: Duration | None = None,
        payload_limit: int | None = None,
        concurrency: int | None = None,
        queues: Iterable[str] | None = None,
        lease: Duration | None = None,
        job_log: str | None = None,
        codec: PayloadCodec | Sequence[PayloadCodec] | None = None,
    ) -> None:
        """`codec`: what is done to arguments and results before they are stored, such as encryption."""
        self.name = Keys(name).namespace
        if url is not None:
            parse(url)  # a bad URL raises here, not with the first job
        self.settings: Settings = load(
            {
                "url": url,
                "deadline": deadline,
                "payload_limit": payload_limit,
                "concurrency": concurrency,
                "queues": queues,
                "lease": lease,
                "job_log": job_log,
            }
        )
        self._client: Client | None = None
        self.search: float | None = None  #: seconds to look for a server, if not until the deadline
        self.program = Program(self.name, self.settings, lambda: self.client, QueueStream, lifespan)
        self.program.codecs = checked_codecs(codec)

    def __repr__(self) -> str:
        return f"<Penstock {self.name}>"

    # Tasks

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, /, *, name: str | None = None, **options: "Unpack[Options]") -> _Decorator: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: "Unpack[Options]"
    ) -> Any:
        """Make a function a task, with or without options."""
        decorator = _Decorator(self, name, TaskOptions().having(options))
        return decorator if function is None else decorator(function)

    # Schedules

    def cron(
        self,
        text: str,
        *,
        tz: str = "UTC",
        jitter: Duration = 0,
        catch_up: CatchUp = "latest",
        overlap: Overlap = "skip",
        id: str | None = None,  # noqa: A002  (options are named as everywhere)
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Callable[[ScheduledTask], ScheduledTask]:
        """Above `@app.task`: run it at these local times of a zone, each once, however many workers there are.

        Five fields, or six with seconds first, or a name such as `@daily`.
        """
        rule = make_rule(text, None, tz)
        return self._schedule(rule, id, args, kwargs or {}, jitter=jitter, catch_up=catch_up, overlap=overlap)

    def every(
        self,
        period: Duration,
        *,
        jitter: Duration = 0,
        catch_up: CatchUp = "latest",
        overlap: Overlap = "skip",
        id: str | None = None,  # noqa: A002  (options are named as everywhere)
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Callable[[ScheduledTask], ScheduledTask]:
        """Above `@app.task`: run it at each multiple of a period since 1970, so that no restart shifts it."""
        rule = make_rule(None, period, "UTC")
        return self._schedule(rule, id, args, kwargs or {}, jitter=jitter, catch_up=catch_up, overlap=overlap)

    def _schedule(
        self, rule: Rule, name: str | None, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any
    ) -> Callable[[ScheduledTask], ScheduledTask]:
        def decorate(task: ScheduledTask) -> ScheduledTask:
            if not isinstance(task, Task):
                raise BadOption(f"@app.cron and @app.every stand above @app.task, not above {task!r}")
            schedule = schedule_id(name or task.name)
            if schedule in self.program.schedules:
                raise BadOption(f"schedule {schedule!r} is there twice: give one of them another id=")
            self.program.schedules[schedule] = make_spec(task.call(*args, **kwargs), rule, **options)
            return task

        return decorate

    def schedule(self, id: str) -> Schedule:  # noqa: A002  (the same)
        """A schedule by its id, to set, pause, resume, run or remove at run time, and for its status."""
        return Schedule(self.client, id)

    async def schedules(self) -> list[ScheduleStatus]:
        """All schedules, in the code or set at run time."""
        now = await self.client.views.now()
        return sorted([status_of(cron, now) async for cron in self.client.views.crons()], key=lambda status: status.id)

    def middleware(self, function: F) -> F:
        """Wrap every run of every job: `async def mw(job, call_next): ...`; the first middleware is the outermost."""
        if not callable(function) or (inspect.isfunction(function) and not inspect.iscoroutinefunction(function)):
            raise BadOption(f"@app.middleware needs an async def (job, call_next), not {function!r}")
        self.program.middlewares.append(function)
        return function

    @property
    def tasks(self) -> dict[str, Task[..., Any, Any]]:
        """Every task by its name."""
        return self.program.tasks

    def find_task(self, name: str) -> Task[..., Any, Any]:
        try:
            return self.tasks[name]
        except KeyError:
            raise UnknownTask(unknown("task", name, self.tasks)) from None

    def _register(self, function: Callable[..., Any], name: str | None, options: TaskOptions) -> Task[..., Any, Any]:
        if not (inspect.isfunction(function) or inspect.ismethod(function)) or inspect.isasyncgenfunction(function):
            raise BadOption(f"@app.task needs a function, def or async def, not {function!r}")
        name = task_name(name or name_of(function))
        _check_executor(name, function, options.executor)
        if name in self.tasks:
            raise BadOption(f"task {name!r} is registered twice: give one of them another name=")
        task: Task[..., Any, Any] = Task(function, name, options, lambda: self.client, self.settings.payload_limit)
        self._check_lanes(name, options.lane)
        task.program = self.program
        self.tasks[name] = task
        return task

    def _check_lanes(self, name: str, lanes: Iterable[Lane]) -> None:
        """Refuse a lane that two tasks declare differently."""
        for lane in lanes:
            for task in self.tasks.values():
                other = next((known for known in task.options.lane if known.name == lane.name), lane)
                if other != lane:
                    raise BadOption(f"{name} and {task.name} disagree about lane {lane.name!r}: {lane} and {other}")

    # Jobs

    async def enqueue_many(self, calls: Iterable[Call[R]] | AsyncIterable[Call[R]]) -> list[Job[R]]:
        """Send any number of calls, a page per round trip; returns their jobs in the same order."""
        sent: deque[Call[R]] = deque()
        known: object = None  #: the task of the last call: most calls have the same

        def job_of(call: Call[R]) -> NewJob:
            nonlocal known
            if not isinstance(call, Call) or call.task is not known:
                check_call(call, self.tasks, "enqueue_many")
                known = call.task
            sent.append(call)
            return call.job

        client, jobs = self.client, list[Job[R]]()
        async for page in client.producer.enqueue_many(map_items(calls, job_of)):  # while the next one is on its way
            jobs += [sent.popleft().task.placed(answer, client) for answer in page]
        return jobs

    def enqueue_many_sync(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """The same from blocking code; all calls are checked before the first is sent."""
        checked = list[Call[R]](check_iterable(calls))
        known: object = None  #: the task of the last call
        for call in checked:
            if not isinstance(call, Call) or call.task is not known:
                check_call(call, self.tasks, "enqueue_many")
                known = call.task
        return run_blocking(self.enqueue_many(checked))

    async def get_job(self, job_id: str) -> Job[Any]:
        """A handle on any job; JobNotFound if nothing is known of it."""
        job = any_job(self.client, job_id)
        status = await job.status()
        task = self.tasks.get(status.task)
        return job if task is None else task.job(job_id)

    get_job_sync = blocking(get_job)

    # Batches

    def batch(
        self,
        name: str = "",
        *,
        limit: int | None = None,
        priority: int | None = None,
        then: Task[..., Any, Any] | None = None,
        on_failure: Task[..., Any, Any] | None = None,
        abandon_after: Duration = "24h",
        keep: Duration = "24h",
        on_error: OnError = "keep",
        id: str | None = None,  # noqa: A002  (options are named as everywhere)
    ) -> Batch:
        """A batch: `async with app.batch("nightly", limit=8) as batch: await batch.add(task.call(1))`.

        At most `limit` members run at once; `priority` is every member's. `then` is a task that gets the BatchStatus
        when the batch is sealed and no member is unfinished; `on_failure` likewise at the first dead member. A batch
        left open for `abandon_after` without a new member is cancelled; it is remembered for `keep` after its end.
        When its block fails it stays open, or is cancelled with `on_error="cancel"`.
        """
        new = new_batch(
            name,
            limit=limit,
            priority=priority,
            then=then,
            on_failure=on_failure,
            abandon_after=abandon_after,
            keep=keep,
            id=id,
        )
        return Batch(lambda: self.client, self.tasks, new, on_error=check_on_error(on_error))

    async def get_batch(self, batch_id: str) -> Batch:
        """A handle on a stored batch; BatchNotFound if nothing is known of it."""
        status = await self._stored_batch(batch_id).status()
        return self._stored_batch(status.id, status.name)

    get_batch_sync = blocking(get_batch)

    def _stored_batch(self, batch_id: str, name: str = "") -> Batch:
        return Batch(lambda: self.client, self.tasks, NewBatch(batch_id, name), is_open=True)

    @overload
    async def map(
        self,
        task: Task[Concatenate[A, ...], R, Any],
        rows: Iterable[A] | AsyncIterable[A],
        *,
        limit: int | None = None,
        priority: int | None = None,
        progress: bool = False,
        return_exceptions: Literal[False] = False,
        on_error: OnError = "cancel",
    ) -> list[R]: ...
    @overload
    async def map(
        self,
        task: Task[Concatenate[A, ...], R, Any],
        rows: Iterable[A] | AsyncIterable[A],
        *,
        limit: int | None = None,
        priority: int | None = None,
        progress: bool = False,
        return_exceptions: bool,
        on_error: OnError = "cancel",
    ) -> list[R | PenstockError]: ...
    async def map(
        self,
        task: Task[Concatenate[A, ...], R, Any],
        rows: Iterable[A] | AsyncIterable[A],
        *,
        limit: int | None = None,
        priority: int | None = None,
        progress: bool = False,
        return_exceptions: bool = False,
        on_error: OnError = "cancel",
    ) -> Any:
        """Run a job for each row, at most `limit` at once; returns their results in the order of the rows.

        If one fails, its JobFailed is raised once all have ended, or returned in its place with `return_exceptions`.
        If a row does not fit the task, or cannot be sent, those before it are cancelled; with `on_error="keep"` they
        stay in an open batch.
        """
        batch = self.batch(task.name, limit=limit, priority=priority, on_error=on_error)
        results = await map_rows(batch, task, rows, progress=progress)
        failed = next((result for result in results if isinstance(result, PenstockError)), None)
        if failed is not None and not return_exceptions:
            raise failed
        return results

    def map_sync(
        self,
        task: Task[Concatenate[A, ...], R, Any],
        rows: Iterable[A],
        *,
        limit: int | None = None,
        priority: int | None = None,
        progress: bool = False,
        on_error: OnError = "cancel",
    ) -> list[R]:
        """The same from blocking code."""
        work = self.map(task, rows, limit=limit, priority=priority, progress=progress, on_error=on_error)
        return self.client.run(work, blocks="the event loop that may have to run the jobs")

    # Watching

    def events(self, queue: str | None = None, since: Since = None, kinds: Iterable[str] | str | None = None) -> Events:
        """Events as they happen: an async iterator from now on, or since an event's id or a time."""
        return Events(self.client.engine, queue=queue, since=since, kinds=kinds)

    # Control

    def lane(self, name: str) -> LaneControl:
        """A lane on the live system: `set(limit=)`, `reset`, `pause`, `resume`, `status`."""
        return LaneControl(lambda: self.client, f"lane:{lane_name(name, 'lane')}")

    def lock(self, name: str) -> LaneControl:
        """The same for a lock."""
        return LaneControl(lambda: self.client, lock_spec(name))

    def queue(self, name: str) -> QueueControl:
        """A queue on the live system: its status, its limits, and its jobs by hand."""
        return QueueControl(self.program, queue_name(name))

    def jobs(self, *, limit: int | None = None, **which: Any) -> Selection:
        """Jobs by `queue`, `task`, `state`, `tag`, `error`, `group`, `batch`, `older_than`, `newer_than`.

        `async for` gives all, `await` a list of the first hundred or `limit`; `count`, `retry`, `cancel`, `move` and
        `discard` act on all of them.
        """
        return Selection(lambda: self.client, choose(**which), limit=limit)

    async def dead_groups(self, **which: Any) -> list[DeadGroup]:
        """Dead jobs grouped by their error, the largest group first."""
        choice = choose(**which)
        wanted = choice.filter(await self.client.views.now(), "dead") if which else None
        return await DeadGroups(self.client.engine).groups(wanted)

    async def retry_job(self, job_id: str, arguments: Mapping[str, Any] | Sequence[Any]) -> None:
        """Run a dead or cancelled job again with other arguments, by name or by position; they are checked here."""
        await retry_edited(self.client, self.tasks, job_id, arguments)

    # Workers

    def worker(
        self,
        *,
        queues: Sequence[str] | str | None = None,
        concurrency: int | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
    ) -> Worker:
        """A worker in this process: `async with app.worker(): ...`, or `await app.worker().run()`."""
        return Worker(
            self.program,
            queues=queues,
            concurrency=concurrency,
            lease=None if lease is None else milliseconds(lease, "lease"),
            grace=GRACE if grace is None else milliseconds(grace, "grace") / 1000,
        )

    async def run_until_idle(
        self, *, queues: Sequence[str] | str | None = None, concurrency: int | None = None
    ) -> None:
        """For tests: run ready jobs until there are none; jobs scheduled for later stay."""
        async with self.worker(queues=queues, concurrency=concurrency) as worker:
            try:
                await worker.until_idle()
            except asyncio.CancelledError:  # Ctrl-C, too
                worker.hurry()
                raise

    def run_until_idle_sync(self, *, queues: Sequence[str] | str | None = None, concurrency: int | None = None) -> None:
        """The same from blocking code, on an event loop of its own."""
        self.client.run(self.run_until_idle(queues=queues, concurrency=concurrency))

    # HTTP

    def asgi(
        self,
        *,
        tokens: "Mapping[str, Role | Principal] | None" = None,
        users: "Mapping[str, tuple[str, Role | Principal]] | None" = None,
        trust: "Trust | None" = None,
        token_file: "str | Path | None" = None,
        access: "Login | None" = None,
    ) -> "Service":
        """The HTTP service as an ASGI app, to be run or mounted under any path; needs the extra `penstock[http]`.

        Access by `tokens={secret: role}`, `users={name: (password, role)}`, the header of a proxy, a file of tokens,
        or by `access`, an async function that takes a request and returns its Principal or None. A Principal may stand
        for a role. Without these by $PENSTOCK_HTTP_TOKENS and the like; without any, this machine may look, and change
        nothing.
        """
        try:
            from penstock.http.access import access_by  # noqa: PLC0415  (an extra)
            from penstock.http.route_table import make_service  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise PenstockError(f"app.asgi() needs {error.name}: pip install 'penstock[http]'") from error

        way = access_by(tokens=tokens, users=users, trust=trust, token_file=token_file, login=access)
        return make_service(self.program, way)

    # Opening and closing

    @property
    def client(self) -> Client:
        """The connection to the server, made with the first use."""
        if self._client is None:
            self._client = Client(
                self.name,
                self.settings.url,
                self.settings.deadline / 1000,
                search=self.search,
                codecs=self.program.codecs,
            )
        return self._client

    async def aclose(self) -> None:
        """Close this loop's connections; the next use opens them again."""
        if self._client is not None:
            await self._client.aclose()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    async def __aenter__(self) -> "Self":
        await self.client.engine.script_client.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        await self.aclose()

    def __enter__(self) -> "Self":
        self.client.engine.script_client.connect_sync()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self.close()


def _check_executor(name: str, function: Callable[..., Any], executor: str | None) -> None:
    if executor == "process" and "<locals>" in function.__qualname__:
        raise BadOption(
            f'{name}: executor="process" needs a function that another process can import: define it in a module'
        )
    if executor == "thread" and inspect.iscoroutinefunction(function):
        raise BadOption(f'{name}: executor="thread" is for def tasks; an async def runs on the loop')
