"""Sending script calls. The same call runs on an event loop, in blocking code or in a pipeline.

Every script is idempotent, so a call that may or may not have been executed is sent again until the deadline.
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
from penstock.engine.transport.error_policy import (
    RETRIED,
    Deadline,
    ErrorPolicy,
    LastPause,
    forbids_functions,
    is_passing,
    is_unknown_script,
)
from penstock.engine.transport.roundtrip import Argument, pack_command, pack_words, roundtrip, roundtrip_sync
from penstock.errors import PenstockError, SchemaMismatch, Unavailable
from penstock.server.connection import SLOW_SECONDS
from penstock.server.endpoint import Endpoint

T = TypeVar("T")


class ScriptCall(msgspec.Struct, Generic[T], frozen=True, eq=False, gc=False):
    """One run of a script, not sent yet: await it, call `.sync()`, or give several to `ScriptClient.together`.

    Two shortcuts are tried once. If the script cannot take them it does nothing and gives an empty answer, and the call
    is sent again without them (`is_refused`):

    - `fast_keys`: only the keys of the script's fast path are sent, which are enough for most jobs and cost less to
      send and parse.
    - `after_id`: the last argument is the id of a job that was sent just before on the same connection and is not
      acknowledged yet. The script runs only if that job is stored, so that pages that are sent without waiting for each
      other keep their order. Of several calls in one round trip none does this: one that was sent again would come
      after the calls behind it.
    """

    script_client: "ScriptClient"
    script: Script
    args: tuple[Argument, ...]
    decode: Callable[[Any], T]
    fast_keys: bool = False
    after_id: bool = False
    timeout: float | None = None  #: seconds for the answer; None: the client's deadline

    def within(self, seconds: float) -> "ScriptCall[T]":
        """The same call, which fails if there is no answer within so many seconds."""
        return replace(self, timeout=seconds)

    def is_refused(self, answer: Any) -> bool:
        """Whether the call has to be sent again without its shortcuts."""
        return (self.fast_keys or self.after_id) and not answer

    def read(self, answer: Any) -> T:
        """Decode the answer, or raise an error of ours."""
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
    """For tests: sees each call and its answer, and may act upon it before the caller goes on."""

    def saw(self, call: ScriptCall[Any], answer: Any) -> None:
        """A call and its raw answer, however it was sent."""

    async def after(self, verb: str) -> None:
        """A call that was awaited by itself has been answered."""

    def after_sync(self, verb: str) -> None:
        """The same for one from blocking code."""


class ScriptClient:
    """Sends the calls of one namespace to its server."""

    def __init__(
        self, endpoint: Endpoint, keys: Keys, *, deadline: float = 5.0, test_clock: Callable[[], int] | None = None
    ) -> None:
        self.endpoint = endpoint
        self.keys = keys
        self.deadline = deadline
        self.stop_at = 0  #: test build only: the redis.call at which scripts stop
        self.spy: CallObserver | None = None
        self._last_pause = LastPause()
        self._functions = True  #: whether the server has functions; else it is sent scripts
        self.test_clock = test_clock
        self._retrying: set[asyncio.Future[Any] | None] = set()  #: tasks whose calls were not answered at once
        self._scripts = load(test=test_clock is not None)
        #: the beginnings of commands and their number of words, by command, script and whether it has the fast keys
        self._starts: dict[tuple[str, str, bool], tuple[int, bytes]] = {}

    def call(
        self,
        verb: str,
        args: tuple[Argument, ...],
        decode: Callable[[Any], T],
        *,
        fast_keys: bool = False,
        after_id: bool = False,
    ) -> ScriptCall[T]:
        return ScriptCall(self, self._scripts[verb], args, decode, fast_keys, after_id)

    async def run(self, call: ScriptCall[T], *, after: "asyncio.Future[Any] | None" = None) -> T:
        """Send one call, again if need be, and decode its answer."""
        (answer,) = await self.together(call, after=after, timeout=call.timeout)
        if self.spy is not None:
            if is_blocking():
                self.spy.after_sync(call.script.name)
            else:
                await self.spy.after(call.script.name)
        return call.read(answer)

    async def together(
        self, *calls: ScriptCall[Any], after: "asyncio.Future[Any] | None" = None, timeout: float | None = None
    ) -> list[Any]:
        """Send calls in one round trip, in order; return the raw answers. If one has to be sent again, all are.

        `after`: a task that sends, with this method, calls that must come before these. They follow at once on the same
        connection; if either is being retried, these wait until the others are done.
        `timeout`: seconds for the answers; by default the client's deadline. Blocking code sends one after the other.
        """
        if is_blocking():
            return [self._raw_answer_sync(call, timeout) for call in calls]
        deadline = Deadline(self.deadline if timeout is None else timeout)
        sent = calls if len(calls) == 1 else _without_shortcuts(calls)
        answers = None if after in self._retrying else await self._try_once(sent, deadline.seconds)
        is_refused = answers is not None and len(sent) == 1 and sent[0].is_refused(answers[0])
        if answers is None or is_refused:
            answers = await self._retry(_without_shortcuts(calls), deadline, after, was_answered=is_refused)
        if self.spy is not None:
            for call, answer in zip(_without_shortcuts(calls), answers, strict=True):
                self.spy.saw(call, answer)
        return answers

    async def isolated(self, calls: list[ScriptCall[Any]]) -> list[Any]:
        """Send calls in one round trip; if one fails for good, send each alone, and its error is its answer.

        An error that concerns all calls (no server, another layout of the data) is raised.
        """
        try:
            return await self.together(*calls)
        except (Unavailable, SchemaMismatch):
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, the caller gets it as the answer to its call)
            if len(calls) == 1:
                return [error]
            return [answer for call in calls for answer in await self.isolated([call])]

    def is_retrying(self, task: "asyncio.Future[Any]", since: float) -> bool:
        """Whether the call that this task sent at that time of its loop is late or is being sent again."""
        return task in self._retrying or task.get_loop().time() - since >= SLOW_SECONDS

    async def _retry(
        self,
        calls: Sequence[ScriptCall[Any]],
        deadline: Deadline,
        after: "asyncio.Future[Any] | None",
        *,
        was_answered: bool,
    ) -> list[Any]:
        """Send calls until they are answered, after those that must come before; `was_answered`: no error occurred."""
        task = asyncio.current_task()
        self._retrying.add(task)
        try:
            if after is not None:
                await asyncio.wait([after])
            answers = await self._try_once(calls, deadline.left) if was_answered else None
            if answers is None:
                answers = await self.ask(lambda client: self._send(client, calls), deadline)
            return answers
        finally:
            self._retrying.discard(task)

    async def _try_once(self, calls: Sequence[ScriptCall[Any]], timeout: float) -> list[Any] | None:
        """The answers, if there is a connection and nothing fails, as is usual; this costs less than `ask`."""
        connection = self.endpoint.shared_connection()
        if connection is None or connection.is_crowded or not calls:
            return None
        try:
            answers = await connection.roundtrip(b"".join(map(self._short, calls)), len(calls), timeout)
        except (redis_errors.RedisError, OSError):
            return None
        return None if any(isinstance(answer, Exception) for answer in answers) else answers

    async def connect(self) -> None:
        """Find the server, and make sure that jobs are safe there."""
        await self.ask(_nothing)

    def connect_sync(self) -> None:
        self.ask_sync(lambda _: None)

    async def ask(self, question: Callable[[Any], Awaitable[T]], deadline: Deadline | None = None) -> T:
        """Run a question on a connected client, again after errors that pass, until the deadline.

        It must be safe to repeat: after an error nobody knows whether the server executed it.
        """
        if is_blocking():
            return self._asked_blocking(question, deadline)
        deadline = deadline or Deadline(self.deadline)
        policy = ErrorPolicy(deadline, self.endpoint, self._last_pause)
        try:
            async with asyncio.timeout(deadline.left):
                while True:
                    try:
                        client = await self.endpoint.client()
                        with self.endpoint.watched():
                            answer = await question(client)
                    except RETRIED as error:
                        pause = policy.pause_after(error)
                        if policy.needs_search:
                            await self.endpoint.forget()
                        await asyncio.sleep(pause)
                    else:
                        policy.succeeded()
                        return answer
        except TimeoutError as error:
            raise policy.unavailable() from error

    def run_sync(self, call: ScriptCall[T]) -> T:
        """Send one call from blocking code, again if need be, and decode its answer."""
        answer = self._raw_answer_sync(call, call.timeout)
        if self.spy is not None:
            self.spy.after_sync(call.script.name)
        return call.read(answer)

    def _raw_answer_sync(self, call: ScriptCall[Any], timeout: float | None) -> Any:
        deadline = Deadline(self.deadline if timeout is None else timeout)
        answer = self._answer_sync(call, deadline)
        if call.is_refused(answer):
            (again,) = _without_shortcuts([call])
            answer = self._answer_sync(again, deadline)
        if self.spy is not None:
            self.spy.saw(call, answer)
        return answer

    def _answer_sync(self, call: ScriptCall[Any], deadline: Deadline) -> Any:
        answers = self._try_once_sync(call, deadline)
        if answers is None:
            return self.ask_sync(lambda client: self._send_sync(client, call, deadline), deadline)
        return answers[0]

    def _try_once_sync(self, call: ScriptCall[Any], deadline: Deadline) -> list[Any] | None:
        """The same as `_try_once` in blocking code."""
        client = self.endpoint.open_client_sync()
        if client is None:
            return None
        try:
            answers = self._roundtrip_sync(client, self._short(call), 1, deadline)
        except (redis_errors.RedisError, OSError):
            return None
        return None if isinstance(answers[0], Exception) else answers

    def ask_sync(self, question: Callable[[Any], T], deadline: Deadline | None = None) -> T:
        """The same as `ask` in blocking code."""
        deadline = deadline or Deadline(self.deadline)
        policy = ErrorPolicy(deadline, self.endpoint, self._last_pause)
        while deadline.left > 0:
            try:
                client = self.endpoint.client_sync(deadline.left)
                answer = question(client)
            except RETRIED as error:
                pause = policy.pause_after(error)
                if policy.needs_search:
                    self.endpoint.forget_sync()
                time.sleep(pause)
            else:
                policy.succeeded()
                return answer
        self.endpoint.forget_sync()  # it may not be the right server: a short deadline leaves no time to ask
        raise policy.unavailable()

    def _asked_blocking(self, question: Callable[[Any], Awaitable[T]], deadline: Deadline | None) -> T:
        """A question for a loop's client, put to the blocking one: the same methods give the answer itself."""
        answer: Any = self.ask_sync(question, deadline)
        if inspect.iscoroutine(answer):
            answer.close()
            raise PenstockError("this question takes several steps of an event loop: ask it in async code")
        result: T = answer
        return result

    async def _send(self, client: Any, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        answers = await roundtrip(client, [self._short(call) for call in calls])
        if self._lacks_scripts(answers):
            loads, texts = self._in_full(calls)
            answers = self._without_loads(await roundtrip(client, loads + texts), len(loads))
        return _unless_error(answers)

    def _send_sync(self, client: Any, call: ScriptCall[Any], deadline: Deadline) -> Any:
        answers = self._roundtrip_sync(client, self._short(call), 1, deadline)
        if self._lacks_scripts(answers):
            loads, texts = self._in_full([call])
            answers = self._roundtrip_sync(client, b"".join(loads + texts), len(loads) + 1, deadline)
            answers = self._without_loads(answers, len(loads))
        return _unless_error(answers)[0]

    def _roundtrip_sync(self, client: Any, commands: bytes, count: int, deadline: Deadline) -> list[Any]:
        def is_current() -> bool:
            return self.endpoint.is_current_sync(client, deadline.left)

        return roundtrip_sync(client, commands, count, deadline.left, is_current)

    # Encoding calls

    def _short(self, call: ScriptCall[Any]) -> bytes:
        """The command that calls a script by the name under which the server has stored it."""
        script = call.script
        if self._functions:
            return self._packed("FCALL", script.function, call, fast_keys=call.fast_keys)
        return self._packed("EVALSHA", script.sha, call, fast_keys=call.fast_keys)

    def _lacks_scripts(self, answers: list[Any]) -> bool:
        """Whether the server did not know a script; it may have no functions, or none for this user."""
        if not any(isinstance(answer, Exception) for answer in answers):
            return False
        if any(map(forbids_functions, answers)):
            self._functions = False
            return True
        return any(map(is_unknown_script, answers))

    def _in_full(self, calls: Sequence[ScriptCall[Any]]) -> tuple[list[bytes], list[bytes]]:
        """The commands that load what the server lacks, and the calls with the scripts' texts.

        All calls again, so that they keep their order; as texts, so that they work whether it takes the library or not.
        """
        loads = [pack_command(("FUNCTION", "LOAD", self._scripts.library))] if self._functions else []
        init = self.call("init", (), bytes)
        return (
            [self._packed("EVAL", init.script.text, init), *loads],
            [self._packed("EVAL", call.script.text, call) for call in calls],
        )

    def _without_loads(self, answers: list[Any], loads: int) -> list[Any]:
        """The answers to the calls. From now on a server that refused a library is sent scripts only."""
        for answer in answers[1:loads]:
            if isinstance(answer, redis_errors.ResponseError) and not is_passing(answer):
                self._functions = False
        return answers[loads:]

    def _packed(self, command: str, name: str, call: ScriptCall[Any], *, fast_keys: bool = False) -> bytes:
        """A command as it is sent. The part that all calls of a script have in common is packed once."""
        script = call.script
        args = call.args if self.test_clock is None else (*call.args, self.test_clock(), self.stop_at)
        start = self._starts.get((command, script.name, fast_keys))
        if start is None:
            keys = [self.keys(key) for key in script.keys[: script.fast_keys if fast_keys else None]]
            start = 3 + len(keys), pack_words((command, name, len(keys), *keys))
            self._starts[command, script.name, fast_keys] = start
        count, text = start
        return b"*%d\r\n%b%b" % (count + len(args), text, pack_words(args) if args else b"")


async def _nothing(_: Any) -> None:
    """A question that only needs a connected client."""


def _unless_error(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _without_shortcuts(calls: Sequence[ScriptCall[Any]]) -> list[ScriptCall[Any]]:
    return [
        replace(call, fast_keys=False, after_id=False, args=call.args[:-1] if call.after_id else call.args)
        if call.fast_keys or call.after_id
        else call
        for call in calls
    ]
