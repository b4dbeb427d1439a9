"""Sending calls: one value runs on an event loop, in a blocking program or in a pipeline.

Every script is idempotent, so whatever may or may not have been executed is simply sent again until the deadline.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace
from redis import exceptions as redis_errors

from penstock.engine.keys import Keys
from penstock.engine.scripts import Script, load
from penstock.engine.transport.blocking import is_blocking
from penstock.engine.transport.retry_policy import (
    SHORTEST_PAUSE,
    Deadline,
    RetryPolicy,
    forbids_functions,
    is_passing,
    is_unknown,
)
from penstock.engine.transport.roundtrip import Argument, packed, roundtrip, roundtrip_sync, words
from penstock.errors import PenstockError, Unavailable
from penstock.server.connection import SLOW
from penstock.server.endpoint import Endpoint

T = TypeVar("T")


class ScriptCall(msgspec.Struct, Generic[T], frozen=True, eq=False, gc=False):
    """One run of a script, not sent yet: await it, call `.sync()`, or give several to `Link.together`."""

    script_client: "ScriptClient"
    script: Script
    args: tuple[Argument, ...]
    decode: Callable[[Any], T]
    few: bool = False  #: is it sent with few keys, as these will mostly do? An empty answer asks for all of them
    behind: bool = False  #: does its last argument say what must be there before it? An empty answer: it is not
    seconds: float | None = None  #: that the server has for its answer, if not as many as for every call

    def within(self, seconds: float) -> "ScriptCall[T]":
        """The same call, which fails if there is no answer within so many seconds."""
        return replace(self, seconds=seconds)

    def is_refused(self, answer: Any) -> bool:
        """Whether it has to be sent again, unconditionally."""
        return (self.few or self.behind) and not answer

    def read(self, answer: Any) -> T:
        """What it says; an error of ours if that cannot be read."""
        try:
            return self.decode(answer)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise PenstockError(
                f"{self.script_client.endpoint} gave an answer to {self.script.name} that cannot be read"
            ) from error

    def __await__(self) -> Generator[Any, None, T]:
        return self.script_client.run(self).__await__()

    def sync(self) -> T:
        return self.script_client.run_sync(self)


class CallObserver(Protocol):
    """For tests: sees what the server is told and answers, and may act upon it before whoever asked goes on."""

    def saw(self, call: ScriptCall[Any], answer: Any) -> None:
        """A call and its raw answer, however it was sent."""

    async def after(self, verb: str) -> None:
        """A call that was awaited by itself has been answered."""

    def after_sync(self, verb: str) -> None:
        """The same for one from blocking code."""


class ScriptClient:
    """The way to one namespace on one server."""

    def __init__(
        self, endpoint: Endpoint, keys: Keys, *, deadline: float = 5.0, test_clock: Callable[[], int] | None = None
    ) -> None:
        self.endpoint = endpoint
        self.keys = keys
        self.deadline = deadline
        self.stop_at = 0  #: test build only: the redis.call at which scripts stop
        self.spy: CallObserver | None = None
        self._pause = SHORTEST_PAUSE  #: before it sends again: what is lost already is not tried ten times more
        self._functions = True  #: does the server keep the verbs that every job goes through?
        self.test_clock = test_clock
        self._troubled: set[asyncio.Future[Any] | None] = set()  #: tasks whose calls were not simply answered
        self._scripts = load(test=test_clock is not None)
        self._starts: dict[tuple[str, str, bool], tuple[int, bytes]] = {}  #: how commands begin, of how many words

    def call(
        self,
        verb: str,
        args: tuple[Argument, ...],
        decode: Callable[[Any], T],
        *,
        few: bool = False,
        behind: bool = False,
    ) -> ScriptCall[T]:
        return ScriptCall(self, self._scripts[verb], args, decode, few, behind)

    async def run(self, call: ScriptCall[T], *, after: "asyncio.Future[Any] | None" = None) -> T:
        """Send one call, again if need be, and decode its answer."""
        (answer,) = await self.together(call, after=after, within=call.seconds)
        if self.spy is not None:
            if is_blocking():
                self.spy.after_sync(call.script.name)
            else:
                await self.spy.after(call.script.name)
        return call.read(answer)

    async def together(
        self, *calls: ScriptCall[Any], after: "asyncio.Future[Any] | None" = None, within: float | None = None
    ) -> list[Any]:
        """Send calls in one round trip, in order; the raw answers. All of them are sent again if one has to be.

        `after`: a task that has called this for what must come before these. They follow it at once, on the same
        connection; if either is in trouble they wait until it is over for that one.
        `within`: seconds for the answers, if not as many as for every call. Blocking code sends one after the other.
        """
        if is_blocking():
            return [self._raw_answer_sync(call, within) for call in calls]
        deadline = Deadline(self.deadline if within is None else within)
        sent = calls if len(calls) == 1 else _unconditional(calls)
        answers = None if after in self._troubled else await self._at_once(sent, deadline.seconds)
        is_refused = answers is not None and len(sent) == 1 and sent[0].is_refused(answers[0])
        if answers is None or is_refused:
            answers = await self._again(_unconditional(calls), deadline, after, at_once=is_refused)
        if self.spy is not None:
            for call, answer in zip(_unconditional(calls), answers, strict=True):
                self.spy.saw(call, answer)
        return answers

    def is_troubled(self, task: "asyncio.Future[Any]", begun: float) -> bool:
        """Whether this task's call, which began at this time of its loop, is late or is being sent again."""
        return task in self._troubled or task.get_loop().time() - begun >= SLOW

    async def _again(
        self,
        calls: Sequence[ScriptCall[Any]],
        deadline: Deadline,
        after: "asyncio.Future[Any] | None",
        *,
        at_once: bool,
    ) -> list[Any]:
        """What was not simply answered, when it is over for what must come before; `at_once`: nothing is wrong."""
        task = asyncio.current_task()
        self._troubled.add(task)
        try:
            if after is not None:
                await asyncio.wait([after])
            answers = await self._at_once(calls, deadline.left) if at_once else None
            if answers is None:
                answers = await self.ask(lambda client: self._send(client, calls), deadline)
            return answers
        finally:
            self._troubled.discard(task)

    async def _at_once(self, calls: Sequence[ScriptCall[Any]], within: float) -> list[Any] | None:
        """The answers, if there is a connection and nothing is wrong: mostly, and then there is less to do."""
        pipe = self.endpoint.pipe()
        if pipe is None or pipe.is_crowded or not calls:
            return None
        try:
            answers = await pipe.post(b"".join(map(self._short, calls)), len(calls), within)
        except (redis_errors.RedisError, OSError):
            return None
        return None if any(isinstance(answer, Exception) for answer in answers) else answers

    async def connect(self) -> None:
        """Find the server, and make sure that jobs are safe there."""
        await self.ask(_nothing)

    def connect_sync(self) -> None:
        self.ask_sync(lambda _: None)

    async def ask(self, question: Callable[[Any], Awaitable[T]], deadline: Deadline | None = None) -> T:
        """Put a question to the server, again if need be, until the deadline; it must be safe to repeat."""
        if is_blocking():
            return self._asked_blocking(question, deadline)
        deadline = deadline or Deadline(self.deadline)
        trouble = RetryPolicy(deadline, self.endpoint, self._pause)
        try:
            async with asyncio.timeout(deadline.left):
                while True:
                    try:
                        client = await self.endpoint.client()
                        with self.endpoint.watched():
                            answer = await question(client)
                    except (redis_errors.RedisError, OSError, Unavailable) as error:
                        wait = trouble.after(error)
                        self._pause = trouble.pause
                        if trouble.lost:
                            await self.endpoint.forget()
                        await asyncio.sleep(wait)
                    else:
                        self._pause = SHORTEST_PAUSE
                        return answer
        except TimeoutError as error:
            raise trouble.unavailable() from error

    def run_sync(self, call: ScriptCall[T]) -> T:
        """Send one call from blocking code."""
        answer = self._raw_answer_sync(call, call.seconds)
        if self.spy is not None:
            self.spy.after_sync(call.script.name)
        return call.read(answer)

    def _raw_answer_sync(self, call: ScriptCall[Any], within: float | None) -> Any:
        deadline = Deadline(self.deadline if within is None else within)
        answer = self._answer_sync(call, deadline)
        if call.is_refused(answer):
            (again,) = _unconditional([call])
            answer = self._answer_sync(again, deadline)
        if self.spy is not None:
            self.spy.saw(call, answer)
        return answer

    def _answer_sync(self, call: ScriptCall[Any], deadline: Deadline) -> Any:
        answers = self._at_once_sync(call, deadline)
        if answers is None:
            return self.ask_sync(lambda client: self._send_sync(client, call, deadline), deadline)
        return answers[0]

    def _at_once_sync(self, call: ScriptCall[Any], deadline: Deadline) -> list[Any] | None:
        """The same as `_at_once` in blocking code."""
        client = self.endpoint.at_hand_sync()
        if client is None:
            return None
        try:
            answers = self._trip_sync(client, self._short(call), 1, deadline)
        except (redis_errors.RedisError, OSError):
            return None
        return None if isinstance(answers[0], Exception) else answers

    def ask_sync(self, question: Callable[[Any], T], deadline: Deadline | None = None) -> T:
        """The same from blocking code."""
        deadline = deadline or Deadline(self.deadline)
        trouble = RetryPolicy(deadline, self.endpoint, self._pause)
        while True:
            if deadline.left <= 0:
                self.endpoint.forget_sync()  # it may not be the right server: a short deadline leaves no time to ask
                raise trouble.unavailable()
            try:
                answer = question(self.endpoint.client_sync(deadline.left))
            except (redis_errors.RedisError, OSError, Unavailable) as error:
                wait = trouble.after(error)
                self._pause = trouble.pause
                if trouble.lost:
                    self.endpoint.forget_sync()
                time.sleep(wait)
            else:
                self._pause = SHORTEST_PAUSE
                return answer

    def _asked_blocking(self, question: Callable[[Any], Awaitable[T]], deadline: Deadline | None) -> T:
        """A question for a loop's client, put to the blocking one: the same methods give the answer itself."""
        answer: Any = self.ask_sync(question, deadline)
        if inspect.iscoroutine(answer):
            answer.close()
            raise PenstockError("this question takes several steps of an event loop: ask it in async code")
        found: T = answer
        return found

    async def _send(self, client: Any, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        answers = await roundtrip(client, [self._short(call) for call in calls])
        if self._lacks_something(answers):
            loads, texts = self._in_full(calls)
            answers = self._without_loads(await roundtrip(client, loads + texts), len(loads))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _trip_sync(self, client: Any, commands: bytes, count: int, deadline: Deadline) -> list[Any]:
        def is_right() -> bool:
            return self.endpoint.is_right_sync(client, deadline.left)

        return roundtrip_sync(client, commands, count, deadline.left, is_right)

    def _send_sync(self, client: Any, call: ScriptCall[Any], deadline: Deadline) -> Any:
        answers = self._trip_sync(client, self._short(call), 1, deadline)
        if self._lacks_something(answers):
            loads, texts = self._in_full([call])
            answers = self._trip_sync(client, b"".join(loads + texts), len(loads) + 1, deadline)
            answers = self._without_loads(answers, len(loads))
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _short(self, call: ScriptCall[Any]) -> bytes:
        """A call by the name of what the server has in store for it."""
        script = call.script
        if script.function and self._functions:
            return self._packed("FCALL", script.function, call, few=call.few)
        return self._packed("EVALSHA", script.sha, call, few=call.few)

    def _lacks_something(self, answers: list[Any]) -> bool:
        """Was anything called that the server does not have? It may have no functions, or none for this user."""
        if not any(isinstance(answer, Exception) for answer in answers):
            return False
        if any(map(forbids_functions, answers)):
            self._functions = False
            return True
        return any(map(is_unknown, answers))

    def _in_full(self, calls: Sequence[ScriptCall[Any]]) -> tuple[list[bytes], list[bytes]]:
        """What the server has to know first, and the calls as texts, for one that lost, or never had, any of it.

        All calls again, so that they keep their order. That they are texts makes them independent of whether it takes
        the libraries.
        """
        needed = self._functions and any(call.script.library for call in calls)
        kept = self._scripts.kept() if needed else []  # all of them: the others will be next
        loads = [packed(("FUNCTION", "LOAD", script.library)) for script in kept]
        init = self.call("init", (), bytes)
        return (
            [self._packed("EVAL", init.script.text, init), *loads],
            [self._packed("EVAL", call.script.text, call) for call in calls],
        )

    def _without_loads(self, answers: list[Any], loads: int) -> list[Any]:
        """The answers to the calls. A server that has no functions, or does not let us load them, is given scripts."""
        for answer in answers[1:loads]:
            if isinstance(answer, redis_errors.ResponseError) and not is_passing(answer):
                self._functions = False
        return answers[loads:]

    def _packed(self, kind: str, what: str, call: ScriptCall[Any], *, few: bool = False) -> bytes:
        """A command as it is sent. What all calls of a verb have in common is packed once."""
        script = call.script
        args = call.args if self.test_clock is None else (*call.args, self.test_clock(), self.stop_at)
        start = self._starts.get((kind, script.name, few))
        if start is None:
            keys = [self.keys(key) for key in script.keys[: script.few if few else None]]
            start = self._starts[kind, script.name, few] = 3 + len(keys), words((kind, what, len(keys), *keys))
        count, text = start
        return b"*%d\r\n%b%b" % (count + len(args), text, words(args) if args else b"")


async def _nothing(_: Any) -> None:
    """A question that only needs a server that was found."""


def _unconditional(calls: Sequence[ScriptCall[Any]]) -> list[ScriptCall[Any]]:
    """The same with all keys, behind nothing. Of several, one that was sent again would come after those behind it."""
    return [
        replace(call, few=False, behind=False, args=call.args[:-1] if call.behind else call.args)
        if call.few or call.behind
        else call
        for call in calls
    ]
