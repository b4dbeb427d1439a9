"""SIGUSR2: where every thread and every task stands, on stderr."""

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable


def dump_on_signal(loop: asyncio.AbstractEventLoop, also: Callable[[], None] | None = None) -> None:
    """Threads are shown at once, even by a process whose loop is blocked; tasks as soon as it turns."""

    def dump() -> None:
        _tasks(loop)
        if also is not None:
            also()

    loop.add_signal_handler(signal.SIGUSR2, dump)
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no stderr to write to
        faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)


def _tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    sys.stderr.write(f"{len(tasks)} tasks of process {os.getpid()}:\n")
    for task in tasks:
        task.print_stack(limit=8, file=sys.stderr)
    sys.stderr.flush()
