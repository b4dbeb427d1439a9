"""How slow this machine is: a busy one costs leases that nothing else has cost, which is not the queue's fault."""

import contextlib
import threading
from collections.abc import Callable

import redis

from tests.chaos.ledger import Ledger, now

PAUSE = 0.1  #: seconds between two questions
SLOW = 0.2  #: seconds that an answer should not take


class Probe:
    """Asks the server again and again, and notes when the answer took long; faults are told apart later."""

    def __init__(self, port: Callable[[], int], ledger: Ledger) -> None:
        self._port = port
        self._ledger = ledger
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        last = now()
        while not self._end.wait(PAUSE):
            with (
                contextlib.suppress(redis.RedisError, OSError),
                redis.Redis(port=self._port(), socket_timeout=15) as client,
            ):
                client.ping()
            if now() - last > (PAUSE + SLOW) * 1_000_000:
                self._ledger.note("slow", since=last, until=now())
            last = now()
