"""Decides after an error of the server: wait and send again, find the server again, or raise an error."""

import random
import re
import time
from typing import Final

from redis import exceptions as redis_errors

from penstock.engine.scripts import SCHEMA
from penstock.errors import CannotConnect, PenstockError, QueueFull, SchemaMismatch, Unavailable, may_pass
from penstock.server import acl
from penstock.server.endpoint import Endpoint

#: The errors that a `ErrorPolicy` decides on; all others are bugs.
RETRIED: Final = (redis_errors.RedisError, OSError, Unavailable)
MIN_PAUSE: Final = 0.01  #: seconds; twice as long after each error
MAX_PAUSE: Final = 1.0

# The first word of errors after which nothing was executed and which pass: wait and send again.
_PASSING = frozenset({"BUSY", "LOADING", "TRYAGAIN", "MISCONF", "NOREPLICAS", "ASK"})
# The same, but the next attempt needs another connection or node.
_ELSEWHERE = frozenset({"MOVED", "READONLY", "UNBLOCKED", "MASTERDOWN", "CLUSTERDOWN"})
_MISSING = frozenset({"PENSTOCKSCHEMA missing", "Function not found"})
_NO_FUNCTIONS: Final = re.compile(r"\bfcall\b", re.IGNORECASE)  # errors of functions do not name it
# redis-py cuts the first word off the texts of these.
_FIRST_WORDS: Final[dict[type[Exception], str]] = {
    redis_errors.AskError: "ASK",
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.MovedError: "MOVED",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.TryAgainError: "TRYAGAIN",
}


class Deadline:
    """How many seconds the server has for its answer, counted from now on."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


class LastPause:
    """The last pause of any call of a client: the next call that fails begins with it, not with the shortest."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = MIN_PAUSE


class ErrorPolicy:
    """The decision after each error of one call: how long to wait before sending again, or which error to raise."""

    def __init__(self, deadline: Deadline, endpoint: Endpoint, last_pause: LastPause) -> None:
        self._endpoint = endpoint
        self._deadline = deadline
        self._last_pause = last_pause
        self._seconds = last_pause.seconds
        self._last: BaseException | None = None
        self.needs_search = (
            False  #: whether the connection or its server is no longer the right one after the last error
        )

    def pause_after(self, error: Exception) -> float:
        """Seconds to wait before sending again; raises the error if sending again cannot help."""
        if self._last is None or not isinstance(error, TimeoutError):  # a time-out says less than the error before it
            self._last = error
        if isinstance(error, Unavailable):  # one search for the server has failed
            if isinstance(error, CannotConnect) or self._endpoint.searches_once:
                raise error
            return self._pause()
        word = _first_word(error)
        self._raise_lasting(word, error)
        self.needs_search = word in _ELSEWHERE or (
            word not in _PASSING and not isinstance(error, redis_errors.ResponseError)
        )
        if not self.needs_search and word not in _PASSING:
            raise PenstockError(f"a script failed on {self._endpoint}: {error}") from error
        return self._pause()

    def _raise_lasting(self, word: str, error: Exception) -> None:
        if word == "OOM":
            raise QueueFull(f"{self._endpoint} has no memory left (maxmemory): nothing was stored") from error
        if word == "PENSTOCKSCHEMA":
            raise mismatch(str(error).partition(" ")[2]) from error
        if isinstance(error, redis_errors.AuthenticationError | redis_errors.NoPermissionError):
            raise _refused(self._endpoint, error) from error

    def _pause(self) -> float:
        """A pause with jitter that ends at the deadline at the latest."""
        seconds = min(self._seconds * 2, MAX_PAUSE, self._deadline.seconds / 3)
        self._seconds = self._last_pause.seconds = seconds
        return min(random.uniform(seconds / 2, seconds), max(self._deadline.left, 0))  # noqa: S311  (jitter)

    def succeeded(self) -> None:
        self._last_pause.seconds = MIN_PAUSE

    def unavailable(self) -> Unavailable:
        """The error to raise when the deadline is over."""
        seconds = self._deadline.seconds
        if isinstance(self._last, Unavailable):
            return Unavailable(f"{self._last} Tried for {seconds:g} s; sending again with the same id is safe.")
        cause = f": {self._last}" if str(self._last or "") else ""
        return Unavailable(
            f"{self._endpoint} did not answer within {seconds:g} s{cause}; sending again with the same id is safe"
        )


def lasting(error: Exception, endpoint: Endpoint) -> PenstockError | None:
    """The error to raise if this one does not pass by waiting.

    A wrong password is not among them: the next search for the server reports it.
    """
    if isinstance(error, redis_errors.NoPermissionError):
        return _refused(endpoint, error)
    return error if isinstance(error, PenstockError) and not may_pass(error) else None


def _refused(endpoint: Endpoint, error: Exception) -> CannotConnect:
    if "'eval" in str(error):
        advice = "a user who may send no scripts needs `penstock engine install`, run by a user who may load functions"
    else:
        advice = f"check user, password and permissions; what a user needs: ACL SETUSER USER {acl.rule('NAMESPACE')}"
    return CannotConnect(f"{endpoint} refuses: {error}; {advice}")


def is_passing(error: Exception) -> bool:
    """Whether the error says nothing about whether this server supports libraries."""
    return "already exists" in str(error) or _first_word(error) in _PASSING | _ELSEWHERE | {"OOM"}


def is_unknown_script(answer: object) -> bool:
    if not isinstance(answer, redis_errors.ResponseError):
        return False
    return isinstance(answer, redis_errors.NoScriptError) or str(answer) in _MISSING


def forbids_functions(answer: object) -> bool:
    """Whether the server does not know FCALL, or forbids it to this user."""
    return isinstance(answer, redis_errors.ResponseError) and bool(_NO_FUNCTIONS.search(str(answer)))


def _first_word(error: Exception) -> str:
    return _FIRST_WORDS.get(type(error)) or str(error).partition(" ")[0]


def mismatch(layout: str) -> SchemaMismatch:
    return SchemaMismatch(f"the data here has layout {layout}, this Penstock knows {SCHEMA}: {what_to_do(layout)}")


def what_to_do(layout: str) -> str:
    """The advice about data of another layout."""
    if layout.isdecimal() and int(layout) < int(SCHEMA):
        return "it is not converted: let the version that wrote it finish its jobs, or use another namespace"
    return "upgrade Penstock, or use another namespace"
