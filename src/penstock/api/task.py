"""A task: a function of the app, and the ways to enqueue it."""

import functools
import hashlib
import inspect
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

import msgspec

from penstock.api.job import Job
from penstock.client.client import Client
from penstock.engine.answers import EnqueueAnswer, Watched
from penstock.engine.engine import NewJob
from penstock.engine.transport.blocking import blocking
from penstock.errors import BadOption
from penstock.model.backoff import pack
from penstock.model.codec import Envelope, Signature, check_size, encode, only_arguments
from penstock.model.header import Header, new_id
from penstock.model.lanes import lock_spec
from penstock.model.options import Options, TaskOptions, free_text, job_id, module_name, template_fields

if TYPE_CHECKING:
    from typing import Unpack

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_IN_PAYLOAD = frozenset({"timeout", "backoff", "retry_on", "give_up_on", "redact"})  #: options that workers need

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_ENQUEUE_HINT = ": send a job with await task.enqueue(…), or task.enqueue_sync(…) from blocking code"
_OPTIONS_HINT = ": send a job with task.using(delay=…).enqueue(…), or .enqueue_sync(…) from blocking code"
#: name in other libraries → the hint for it
_NAMES_ELSEWHERE = dict.fromkeys(("delay", "send", "kiq", "submit", "defer"), _ENQUEUE_HINT) | dict.fromkeys(
    ("apply_async", "send_with_options", "schedule", "enqueue_in", "enqueue_at"), _OPTIONS_HINT
)


class Call(msgspec.Struct, Generic[R], frozen=True, eq=False, gc=False):
    """A job that is not sent yet."""

    task: "Task[..., R, Any]"
    options: TaskOptions
    job: NewJob

    def __repr__(self) -> str:
        return f"<Call {self.task.name} {self.job.id}>"


class Task(Generic[P, R, T]):
    """A function of the app. Calling it runs it here and now; `enqueue` has it run by a worker."""

    def __init__(
        self,
        function: Callable[P, T],
        name: str,
        options: TaskOptions,
        client: Callable[[], Client],
        limit: int,
        *,
        base: "Task[P, R, T] | None" = None,
        changed: frozenset[str] = frozenset(),
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.options = options
        self.signature: Signature = base.signature if base else Signature(function, name, options.redact)
        self.is_async = inspect.iscoroutinefunction(function)
        self._client = client
        self._decode = self.signature.decode_result
        self._limit = limit
        self._changed = changed
        self._head: Header | None = None
        #: whether its calls differ only in id and payload
        self._is_plain = not (options.unique or options.id or options.lock or options.lane)
        #: whether its payloads have nothing but arguments
        self._is_bare = not options.tags and changed.isdisjoint(_IN_PAYLOAD)
        self.program: Any = base.program if base else None  #: the app's middlewares and lifespan
        if base is None:
            self._check_templates()

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _NAMES_ELSEWHERE]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)

    def using(self, **options: "Unpack[Options]") -> "Task[P, R, T]":
        """The same task with other options, which never mix with its arguments."""
        return Task(
            self.function,
            self.name,
            self.options.having(options),
            self._client,
            self._limit,
            base=self,
            changed=self._changed | options.keys(),
        )

    @property
    def changed(self) -> frozenset[str]:
        """The options that `using` gave."""
        return self._changed

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A job to send later, alone or with others; its arguments are checked here."""
        packed = self.signature.pack(args, kwargs)
        options, header = self.options, self._head or self._header()
        payload = only_arguments(packed) if self._is_bare else self._wrapped(packed)
        if len(payload) > self._limit:
            check_size(payload, self.name, self._limit)
        if self._is_plain:
            return Call(self, options, NewJob(new_id(), header, payload))
        bound = self.signature.bind(args, kwargs)
        unique = self._unique_key(bound) if options.unique else ""
        if unique or options.id:
            header = msgspec.structs.replace(header, unique=unique, nonce=secrets.token_hex(4) if options.id else "")
        if options.lock or options.lane:
            header = msgspec.structs.replace(header, lanes=self._lanes(bound))
        return Call(self, options, NewJob(options.id or new_id(), header, payload))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Send a job; once this returns, it is stored."""
        call, client = self.call(*args, **kwargs), self._client()
        return self.placed(await client.producer.enqueue(call.job), client)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The same from blocking code, also after a fork."""
        # By hand: the coroutines of `blocking(enqueue)` would cost a tenth more CPU.
        call, client = self.call(*args, **kwargs), self._client()
        return self.placed(client.producer.enqueue_sync(call.job), client)

    async def get_job(self, job_id: str) -> Job[R]:
        """A handle on an earlier job of this task; JobNotFound if nothing is known of it."""
        job = self.job(job_id)
        await job.status()
        return job

    get_job_sync = blocking(get_job)

    def job(self, job_id: str, *, watched: Watched | None = None) -> Job[R]:
        return Job(self._client(), job_id, self._decode, False, self.options.redact, watched)  # noqa: FBT003 - in C, by place

    def placed(self, answer: EnqueueAnswer, client: Client) -> Job[R]:
        """A handle on the job that a call created or that existed already."""
        return Job(client, answer.id, self._decode, answer.word == "created", self.options.redact)

    def payload_around(self, parameter: str) -> tuple[bytes, bytes]:
        """A payload that gives this parameter the status of a batch: the bytes before the status and those after."""
        gap = encode(secrets.token_bytes(16))
        before, _, after = self._wrapped(b"\x81" + encode(parameter) + gap, parameter).partition(gap)
        return before, after

    async def pause(self) -> None:
        """Start none of its jobs, in any queue, until `resume`; running ones continue."""
        await self._client().engine.tune(f"task:{self.name}", paused=True)

    pause_sync = blocking(pause)

    async def resume(self) -> None:
        await self._client().engine.tune(f"task:{self.name}", paused=False)

    resume_sync = blocking(resume)

    def _header(self) -> Header:
        """What all jobs with these options have in common."""
        if self._head is None:
            options = self.options
            self._head = Header(
                state="",
                task=self.name,
                queue=options.queue,
                priority=options.priority,
                due=options.at or options.delay,
                expires=options.expires,
                keep=options.keep_result,
                retries=options.retries,
            )
        return self._head

    def _wrapped(self, packed: bytes, status: str = "") -> bytes:
        """A payload: the arguments, and the worker's options that differ from the task's."""
        options, changed = self.options, self._changed
        return encode(
            Envelope(
                msgspec.Raw(packed),
                tags=list(options.tags),
                timeout=options.timeout if "timeout" in changed else -1,
                backoff=list(pack(options.backoff)) if "backoff" in changed else [],
                retry_on=list(options.retry_on or ()) if "retry_on" in changed else None,
                give_up_on=list(options.give_up_on) if "give_up_on" in changed else None,
                redact=list(options.redact) if "redact" in changed else [],
                status=status,
            )
        )

    def _unique_key(self, bound: dict[str, Any]) -> str:
        unique = self.options.unique
        if unique is True:
            return f"{self.name}:{hashlib.sha256(self.signature.canonical(bound)).hexdigest()[:32]}"
        assert isinstance(unique, str)
        return unique if "unique" in self._changed else free_text(self._fill(unique, bound), "unique")

    def _lanes(self, bound: dict[str, Any]) -> list[str]:
        """The locks and lanes of one call, as they are stored in its header."""

        def filled(what: str) -> Callable[[str], str]:
            return str if what in self._changed else lambda text: self._fill(text, bound, what)

        locks = [lock_spec(filled("lock")(name)) for name in self.options.lock]
        lanes = [lane.filled(filled("lane")).spec(self.options.cost) for lane in self.options.lane]
        return list(dict.fromkeys(locks)) + lanes

    def _fill(self, template: str, bound: dict[str, Any], what: str = "unique") -> str:
        """Fill a template with this call's arguments, and with the defaults of others."""
        defaults = {p.name: p.default for p in self.signature.parameters.values()}
        try:
            return template.format_map(defaults | bound)
        except (AttributeError, LookupError, ValueError, TypeError) as error:
            raise BadOption(f"{self.name}: {what}={template!r} cannot be filled in: {error}") from None

    def _check_templates(self) -> None:
        plain = {name for name, parameter in self.signature.parameters.items() if parameter.kind not in _VARIADIC}
        templates = [("lock", name) for name in self.options.lock] + [("lane", lane.name) for lane in self.options.lane]
        if isinstance(self.options.unique, str):
            templates.append(("unique", self.options.unique))
        for what, template in templates:
            if unknown := template_fields(template) - plain:
                names = ", ".join(sorted(plain)) or "none"
                raise BadOption(f"{self.name}: {what}={template!r} names {unknown}; its parameters are {names}")
        if self.options.id:
            job_id(self.options.id)


class _NameElsewhere:
    """An attribute that tasks of other libraries have: its error says what it is called here.

    A `__getattr__` of tasks would do the same, but make every attribute access of tasks take twice the time.
    """

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, task: object, owner: type) -> NoReturn:
        raise AttributeError(f"a Task has no attribute {self._name!r}{self._hint}", name=self._name, obj=task)


for _name, _hint in _NAMES_ELSEWHERE.items():
    setattr(Task, _name, _NameElsewhere(_name, _hint))


def name_of(function: Callable[..., Any]) -> str:
    """`module:function`, the same whether its module runs as a program or is imported."""
    return f"{module_name(function.__module__)}:{function.__qualname__}"
