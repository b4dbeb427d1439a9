"""Sending calls: one value runs on an event loop, in a blocking program or in a pipeline.

Every script is idempotent, so whatever may or may not have been executed is simply sent again until the deadline.
"""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import hiredis
from redis import exceptions as redis_errors

from penstock.engine.keys import Keys
from penstock.engine.scripts import SCHEMA, Script, load
from penstock.errors import PenstockError, QueueFull, SchemaMismatch, Unavailable
from penstock.server.connect import Endpoint

T = TypeVar("T")
Argument = str | bytes | int

SHORTEST_PAUSE: Final = 0.01  #: seconds; twice as long after each error
LONGEST_PAUSE: Final = 2.0

# Not executed, and it passes by itself: wait and send again. The second group also needs another connection or node.
_PASSING = frozenset({"BUSY", "LOADING", "TRYAGAIN", "MISCONF", "NOREPLICAS", "ASK"})
_ELSEWHERE = frozenset({"MOVED", "READONLY", "UNBLOCKED", "MASTERDOWN", "CLUSTERDOWN"})
_MISSING = frozenset({"PENSTOCKSCHEMA missing", "Function not found"})
_NO_FUNCTIONS: Final = re.compile(r"\bfcall\b", re.IGNORECASE)  # errors of functions do not name it
# redis-py cuts the code off the texts of these.
_CODES: Final[dict[type[Exception], str]] = {
    redis_errors.AskError: "ASK",
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.MovedError: "MOVED",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.TryAgainError: "TRYAGAIN",
}


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One run of a script, not sent yet: await it, call `.sync()`, or give several to `Link.together`."""

    link: "Link"
    script: Script
    args: tuple[Argument, ...]
    decode: Callable[[Any], T]

    def __await__(self) -> Generator[Any, None, T]:
        return self.link.run(self).__await__()

    def sync(self) -> T:
        return self.link.run_sync(self)


class Spy(Protocol):
    """For tests: sees what the server is told and answers, and may act upon it before whoever asked goes on."""

    def saw(self, call: Call[Any], answer: Any) -> None:
        """A call and its raw answer, however it was sent."""

    async def after(self, verb: str) -> None:
        """A call that was awaited by itself has been answered."""

    def after_sync(self, verb: str) -> None:
        """The same for one from blocking code."""


class Link:
    """The way to one namespace on one server."""

    def __init__(
        self, endpoint: Endpoint, keys: Keys, *, deadline: float = 5.0, test_clock: Callable[[], int] | None = None
    ) -> None:
        self.endpoint = endpoint
        self.keys = keys
        self.deadline = deadline
        self.stop_at = 0  #: test build only: the redis.call at which scripts stop
        self.spy: Spy | None = None
        self._pause = SHORTEST_PAUSE  #: before it sends again: what is lost already is not tried ten times more
        self._functions = True  #: does the server keep the verbs that every job goes through?
        self.test_clock = test_clock
        scripts = load(test=test_clock is not None)
        self._scripts = scripts
        self._keys = {name: [keys(key) for key in script.keys] for name, script in scripts.items()}
        self._starts: dict[tuple[str, str], bytes] = {}

    def call(self, verb: str, args: tuple[Argument, ...], decode: Callable[[Any], T]) -> Call[T]:
        return Call(self, self._scripts[verb], args, decode)

    async def run(self, call: Call[T]) -> T:
        """Send one call, again if need be, and decode its answer."""
        (answer,) = await self.together(call)
        if self.spy is not None:
            await self.spy.after(call.script.name)
        return call.decode(answer)

    async def together(self, *calls: Call[Any]) -> list[Any]:
        """Send calls in one round trip, in order; the raw answers. All of them are sent again if one has to be."""
        answers = await self.ask(lambda client: self._send(client, calls))
        if self.spy is not None:
            for call, answer in zip(calls, answers, strict=True):
                self.spy.saw(call, answer)
        return answers

    async def ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """Put a question to the server, again if need be, until the deadline; it must be safe to repeat."""
        trouble = _Trouble(self.deadline, self.endpoint, self._pause)
        try:
            async with asyncio.timeout(self.deadline):
                while True:
                    try:
                        answer = await question(await self.endpoint.client())
                    except (redis_errors.RedisError, OSError) as error:
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

    def run_sync(self, call: Call[T]) -> T:
        """Send one call from blocking code."""
        answer = self.ask_sync(lambda client: self._send_sync(client, call))
        if self.spy is not None:
            self.spy.saw(call, answer)
            self.spy.after_sync(call.script.name)
        return call.decode(answer)

    def ask_sync(self, question: Callable[[Any], T]) -> T:
        """The same from blocking code."""
        trouble = _Trouble(self.deadline, self.endpoint, self._pause)
        while True:
            try:
                answer = question(self.endpoint.client_sync())
            except (redis_errors.RedisError, OSError) as error:
                wait = trouble.after(error)
                self._pause = trouble.pause
                if trouble.lost:
                    self.endpoint.forget_sync()
                time.sleep(wait)
            else:
                self._pause = SHORTEST_PAUSE
                return answer

    async def _send(self, client: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        answers = await _trip(client, [self._short(call) for call in calls])
        if self._lacks_something(answers):
            loads, texts = self._in_full(calls)
            answers = self._without_loads(await _trip(client, loads + texts), len(loads))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _send_sync(self, client: Any, call: Call[Any]) -> Any:
        answers = _trip_sync(client, [self._short(call)])
        if self._lacks_something(answers):
            loads, texts = self._in_full([call])
            answers = self._without_loads(_trip_sync(client, loads + texts), len(loads))
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _short(self, call: Call[Any]) -> bytes:
        """A call by the name of what the server has in store for it."""
        script = call.script
        if script.function and self._functions:
            return self._packed("FCALL", script.function, call)
        return self._packed("EVALSHA", script.sha, call)

    def _lacks_something(self, answers: list[Any]) -> bool:
        """Was anything called that the server does not have? It may have no functions, or none for this user."""
        if any(map(_forbids_functions, answers)):
            self._functions = False
            return True
        return any(map(_unknown, answers))

    def _in_full(self, calls: Sequence[Call[Any]]) -> tuple[list[bytes], list[bytes]]:
        """What the server has to know first, and the calls as texts, for one that lost, or never had, any of it.

        All calls again, so that they keep their order. That they are texts makes them independent of whether it takes
        the libraries.
        """
        libraries = dict.fromkeys(call.script.library for call in calls if call.script.library and self._functions)
        loads = [_pack(("FUNCTION", "LOAD", library)) for library in libraries]
        init = self.call("init", (), bytes)
        return (
            [self._packed("EVAL", init.script.text, init), *loads],
            [self._packed("EVAL", call.script.text, call) for call in calls],
        )

    def _without_loads(self, answers: list[Any], loads: int) -> list[Any]:
        """The answers to the calls. A server that has no functions, or does not let us load them, is given scripts."""
        for answer in answers[1:loads]:
            if isinstance(answer, redis_errors.ResponseError) and not _is_passing(answer):
                self._functions = False
        return answers[loads:]

    def _packed(self, kind: str, what: str, call: Call[Any]) -> bytes:
        """A command as it is sent. What all calls of a verb have in common is packed once."""
        name = call.script.name
        keys = self._keys[name]
        args = (*call.args, *self._test_args())
        start = self._starts.get((kind, name))
        if start is None:
            start = self._starts[kind, name] = _body(_pack((kind, what, len(keys), *keys)))
        return b"*%d\r\n%b%b" % (3 + len(keys) + len(args), start, _body(_pack(args)) if args else b"")

    def _test_args(self) -> tuple[Argument, ...]:
        return (self.test_clock(), self.stop_at) if self.test_clock else ()


async def _trip(client: Any, commands: list[bytes]) -> list[Any]:
    """Commands out, answers back, errors among them, on one of the client's connections.

    Its pipeline would do the same with four times the work. A connection whose answers were not all read is closed, so
    that nobody can take them for their own.
    """
    pool = client.connection_pool
    connection = await pool.get_connection()
    try:
        await connection.send_packed_command(b"".join(commands), check_health=False)
        return [await _answer(connection) for _ in commands]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except redis_errors.ResponseError as error:
        return error


def _trip_sync(client: Any, commands: list[bytes]) -> list[Any]:
    """The same from blocking code."""
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command([b"".join(commands)], check_health=False)
        return [_answer_sync(connection) for _ in commands]
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def _answer_sync(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis_errors.ResponseError as error:
        return error


def _pack(command: Sequence[Argument]) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub allows one word only
    return packed


def _body(packed: bytes) -> bytes:
    """Its words, without their number in front."""
    return packed[packed.index(b"\n") + 1 :]


class _Trouble:
    """What to do after an error: how long to wait before sending again, or which error of ours to raise."""

    def __init__(self, deadline: float, where: Endpoint, pause: float) -> None:
        self._where = where
        self._deadline = deadline
        self._until = time.monotonic() + deadline
        self.pause = pause
        self._last: BaseException | None = None
        self.lost = False  #: the connection or its server is not the right one any more

    def after(self, error: Exception) -> float:
        """Seconds to wait; raises what sending again cannot help."""
        self._last = error
        word = _word(error)
        if word == "OOM":
            raise QueueFull(f"{self._where} has no memory left (maxmemory): nothing was stored") from error
        if word == "PENSTOCKSCHEMA":
            raise SchemaMismatch(_mismatch(error)) from error
        if isinstance(error, redis_errors.AuthenticationError | redis_errors.NoPermissionError):
            raise Unavailable(f"{self._where} refuses: {error}; check user, password and permissions") from error
        self.lost = word in _ELSEWHERE or (word not in _PASSING and not isinstance(error, redis_errors.ResponseError))
        if not self.lost and word not in _PASSING:
            raise PenstockError(f"a script failed on {self._where}: {error}") from error
        self.pause = min(self.pause * 2, LONGEST_PAUSE, self._deadline / 3)
        if time.monotonic() + self.pause > self._until:
            raise self.unavailable() from error
        return random.uniform(self.pause / 2, self.pause)  # noqa: S311  (jitter)

    def unavailable(self) -> Unavailable:
        cause = f": {self._last}" if self._last else ""
        return Unavailable(
            f"{self._where} did not answer within {self._deadline:g} s{cause}; sending again with the same id is safe"
        )


def _is_passing(error: Exception) -> bool:
    """Says nothing about whether this server takes libraries."""
    return "already exists" in str(error) or _word(error) in _PASSING | _ELSEWHERE | {"OOM"}


def _word(error: Exception) -> str:
    return _CODES.get(type(error)) or str(error).partition(" ")[0]


def _unknown(answer: object) -> bool:
    if not isinstance(answer, redis_errors.ResponseError):
        return False
    return isinstance(answer, redis_errors.NoScriptError) or str(answer) in _MISSING


def _forbids_functions(answer: object) -> bool:
    """The command is unknown to the server, or forbidden to this user."""
    return isinstance(answer, redis_errors.ResponseError) and bool(_NO_FUNCTIONS.search(str(answer)))


def _mismatch(error: Exception) -> str:
    found = str(error).partition(" ")[2]
    return (
        f"the data here has layout {found}, this Penstock knows {SCHEMA}: "
        "upgrade whichever is older, or use another namespace"
    )
