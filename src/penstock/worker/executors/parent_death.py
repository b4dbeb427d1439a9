"""Ending a process when its parent ends."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1


def tie_to_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; where it cannot, a closed pipe must tell."""
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)


def watch_parent(parent: int) -> None:
    """End with the parent where the kernel cannot do that and no socket closes at its end."""
    if sys.platform != "linux":
        threading.Thread(target=_poll_parent, args=(parent,), name="penstock-parent", daemon=True).start()


def _poll_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    die()


def signal_on_parent_death() -> None:
    """From now on a parent's death only sends SIGTERM; so does the end of the thread that started this process."""
    _die_with_parent(signal.SIGTERM)


def _die_with_parent(number: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def die() -> NoReturn:
    """End this process at once, with its whole group if it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
