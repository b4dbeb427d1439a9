"""What an error of the server means: wait and send again, look elsewhere, give it what it lost, or tell the caller."""

import random
import re
import time
from typing import Final

from redis import exceptions as redis_errors

from penstock.engine.scripts import SCHEMA
from penstock.errors import CannotConnect, PenstockError, QueueFull, SchemaMismatch, Unavailable, may_pass
from penstock.server.endpoint import Endpoint

SHORTEST_PAUSE: Final = 0.01  #: seconds; twice as long after each error
LONGEST_PAUSE: Final = 1.0

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


class Deadline:
    """How many seconds the server has for its answer, counted from now on."""

    __slots__ = ("_until", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until it is over."""
        return self._until - time.monotonic()


class RetryPolicy:
    """What to do after an error: how long to wait before sending again, or which error of ours to raise."""

    def __init__(self, deadline: Deadline, where: Endpoint, pause: float) -> None:
        self._where = where
        self._deadline = deadline
        self.pause = pause
        self._last: BaseException | None = None
        self.lost = False  #: the connection or its server is not the right one any more

    def after(self, error: Exception) -> float:
        """Seconds to wait; raises what sending again cannot help."""
        if self._last is None or not isinstance(error, TimeoutError):  # which says less than what came before it
            self._last = error
        if isinstance(error, Unavailable):  # one search for the server has failed
            if isinstance(error, CannotConnect) or self._where.searches_once:
                raise error
            return self._wait()
        word = _word(error)
        if word == "OOM":
            raise QueueFull(f"{self._where} has no memory left (maxmemory): nothing was stored") from error
        if word == "PENSTOCKSCHEMA":
            raise mismatch(str(error).partition(" ")[2]) from error
        if isinstance(error, redis_errors.AuthenticationError | redis_errors.NoPermissionError):
            raise _refused(self._where, error) from error
        self.lost = word in _ELSEWHERE or (word not in _PASSING and not isinstance(error, redis_errors.ResponseError))
        if not self.lost and word not in _PASSING:
            raise PenstockError(f"a script failed on {self._where}: {error}") from error
        return self._wait()

    def _wait(self) -> float:
        """A pause, which ends at the deadline at the latest."""
        self.pause = min(self.pause * 2, LONGEST_PAUSE, self._deadline.seconds / 3)
        return min(random.uniform(self.pause / 2, self.pause), max(self._deadline.left, 0))  # noqa: S311  (jitter)

    def unavailable(self) -> Unavailable:
        seconds = self._deadline.seconds
        if isinstance(self._last, Unavailable):
            return Unavailable(f"{self._last} Tried for {seconds:g} s; sending again with the same id is safe.")
        cause = f": {self._last}" if str(self._last or "") else ""
        return Unavailable(
            f"{self._where} did not answer within {seconds:g} s{cause}; sending again with the same id is safe"
        )


def lasting(error: Exception, where: Endpoint) -> PenstockError | None:
    """The error of ours to raise, if it is one that waiting does not heal.

    A wrong password is not among them: who looks for the server again is told of it there.
    """
    if isinstance(error, redis_errors.NoPermissionError):
        return _refused(where, error)
    return error if isinstance(error, PenstockError) and not may_pass(error) else None


def _refused(where: Endpoint, error: Exception) -> CannotConnect:
    return CannotConnect(f"{where} refuses: {error}; check user, password and permissions")


def is_passing(error: Exception) -> bool:
    """Says nothing about whether this server takes libraries."""
    return "already exists" in str(error) or _word(error) in _PASSING | _ELSEWHERE | {"OOM"}


def _word(error: Exception) -> str:
    text = str(error).rpartition("of pipeline caused error: ")[2]  # redis-py puts the command in front
    return _CODES.get(type(error)) or text.partition(" ")[0]


def is_unknown(answer: object) -> bool:
    if not isinstance(answer, redis_errors.ResponseError):
        return False
    return isinstance(answer, redis_errors.NoScriptError) or str(answer) in _MISSING


def forbids_functions(answer: object) -> bool:
    """The command is unknown to the server, or forbidden to this user."""
    return isinstance(answer, redis_errors.ResponseError) and bool(_NO_FUNCTIONS.search(str(answer)))


def mismatch(found: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the data here has layout {found}, this Penstock knows {SCHEMA}: "
        "upgrade whichever is older, or use another namespace"
    )
