"""SIGUSR2: the stack of every thread and every task, on stderr."""

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable


def dump_on_signal(loop: asyncio.AbstractEventLoop, then: Callable[[], None] | None = None) -> None:
    """Threads are shown at once, even if the loop is blocked; tasks as soon as it turns."""

    def dump() -> None:
        _print_tasks(loop)
        if then is not None:
            then()

    loop.add_signal_handler(signal.SIGUSR2, dump)
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no stderr to write to
        faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)


def _print_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    sys.stderr.write(f"{len(tasks)} tasks of process {os.getpid()}:\n")
    for task in tasks:
        task.print_stack(limit=8, file=sys.stderr)
    sys.stderr.flush()
