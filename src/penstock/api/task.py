"""A task: the function you wrote, and the ways to have it run elsewhere."""

import functools
import hashlib
import inspect
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

import msgspec

from penstock.api.job import Job
from penstock.client.client import Client
from penstock.engine.answers import EnqueueAnswer, Watched, checked
from penstock.engine.engine import NewJob
from penstock.errors import BadOption
from penstock.model.backoff import pack
from penstock.model.codec import Envelope, Signature, check_size, encode, only_arguments
from penstock.model.header import Header, new_id
from penstock.model.lanes import lock_spec
from penstock.model.options import Options, TaskOptions, free_text, job_id, module_name, template_fields

if TYPE_CHECKING:
    from typing import Unpack

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_IN_PAYLOAD = frozenset({"timeout", "backoff", "retry_on", "give_up_on", "redact"})  #: options that workers need

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_ENQUEUE = ": send a job with await task.enqueue(…), or task.enqueue_sync(…) from blocking code"
_OPTIONS = ": send a job with task.using(delay=…).enqueue(…), or .enqueue_sync(…) from blocking code"
#: how other libraries spell it
_OTHERS_SEND = dict.fromkeys(("delay", "send", "kiq", "submit", "defer"), _ENQUEUE) | dict.fromkeys(
    ("apply_async", "send_with_options", "schedule", "enqueue_in", "enqueue_at"), _OPTIONS
)


class Call(msgspec.Struct, Generic[R], frozen=True, eq=False, gc=False):
    """A job that has not been sent yet."""

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
        self.signature: Signature = base.signature if base else Signature(function, name)
        self.is_async = inspect.iscoroutinefunction(function)
        self._client = client
        self._decode = self.signature.decode_result
        self._limit = limit
        self._changed = changed
        self._head: Header | None = None
        #: do its calls differ in their arguments only, and is there nothing but these in a payload?
        self._is_plain = not (options.unique or options.id or options.lock or options.lane)
        self._is_bare = not options.tags and changed.isdisjoint(_IN_PAYLOAD)
        self.program: Any = base.program if base else None  #: what the app wraps around its runs
        if base is None:
            self._check_templates()

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _OTHERS_SEND]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)

    def using(self, **options: "Unpack[Options]") -> "Task[P, R, T]":
        """The same task with other options; they never mix with its arguments."""
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
        """A job to be sent later, alone or with others; its arguments are checked here."""
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
        call, client = self.call(*args, **kwargs), self._client()
        return self.placed(checked(client.engine.enqueue([call.job]).sync()[0], call.job.header.queue), client)

    async def get_job(self, job_id: str) -> Job[R]:
        """A handle on an earlier job of this task; JobNotFound if nothing is known of it."""
        job = self.job(job_id)
        await job.status()
        return job

    def get_job_sync(self, job_id: str) -> Job[R]:
        job = self.job(job_id)
        job.status_sync()
        return job

    def job(self, found: str, *, watched: Watched | None = None) -> Job[R]:
        return Job(self._client(), found, self._decode, False, self.options.redact, watched)  # noqa: FBT003 - in C, by place

    def placed(self, placed: EnqueueAnswer, client: Client) -> Job[R]:
        """The handle on what became of a call."""
        return Job(client, placed.id, self._decode, placed.word == "created", self.options.redact)

    def payload_around(self, parameter: str) -> tuple[bytes, bytes]:
        """A payload that gives this parameter the status of a batch, as what comes before it and what follows."""
        gap = encode(secrets.token_bytes(16))
        before, _, after = self._wrapped(b"\x81" + encode(parameter) + gap, parameter).partition(gap)
        return before, after

    async def pause(self) -> None:
        """Have none of its jobs started, in any queue, until it is resumed; those that run go on."""
        await self._client().engine.tune(f"task:{self.name}", paused=True)

    def pause_sync(self) -> None:
        self._client().engine.tune(f"task:{self.name}", paused=True).sync()

    async def resume(self) -> None:
        await self._client().engine.tune(f"task:{self.name}", paused=False)

    def resume_sync(self) -> None:
        self._client().engine.tune(f"task:{self.name}", paused=False).sync()

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
        """A payload: arguments, and of the options that workers need those that are not the task's own."""
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
        """The locks and lanes of one call, as its header has them."""

        def filled(what: str) -> Callable[[str], str]:
            return str if what in self._changed else lambda text: self._fill(text, bound, what)

        locks = [lock_spec(filled("lock")(name)) for name in self.options.lock]
        lanes = [lane.filled(filled("lane")).spec(self.options.cost) for lane in self.options.lane]
        return list(dict.fromkeys(locks)) + lanes

    def _fill(self, template: str, bound: dict[str, Any], what: str = "unique") -> str:
        """A template with this call's arguments; parameters that were left out have their defaults."""
        defaults = {p.name: p.default for p in self.signature.parameters.values()}
        try:
            return template.format_map(defaults | bound)
        except (AttributeError, LookupError, ValueError, TypeError) as error:
            raise BadOption(f"{self.name}: {what}={template!r} cannot be filled in: {error}") from None

    def _check_templates(self) -> None:
        plain = {name for name, one in self.signature.parameters.items() if one.kind not in _MANY}
        templates = [("lock", name) for name in self.options.lock] + [("lane", one.name) for one in self.options.lane]
        if isinstance(self.options.unique, str):
            templates.append(("unique", self.options.unique))
        for what, template in templates:
            if strange := template_fields(template) - plain:
                names = ", ".join(sorted(plain)) or "none"
                raise BadOption(f"{self.name}: {what}={template!r} names {strange}; its parameters are {names}")
        if self.options.id:
            job_id(self.options.id)


class _Elsewhere:
    """What other libraries have: who asks for it is told how it is spelt here.

    A `__getattr__` of tasks would do the same, and have every attribute of theirs found in twice the time.
    """

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, task: object, owner: type) -> NoReturn:
        raise AttributeError(f"a Task has no attribute {self._name!r}{self._hint}", name=self._name, obj=task)


for _name, _hint in _OTHERS_SEND.items():
    setattr(Task, _name, _Elsewhere(_name, _hint))


def name_of(function: Callable[..., Any]) -> str:
    """`module:function`, the same whether its module runs as a program or is imported."""
    return f"{module_name(function.__module__)}:{function.__qualname__}"
