"""Dying with one's parent."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def tie_to_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, where it can; elsewhere a closed pipe must say so."""
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def watch_parent(parent: int) -> None:
    """Die with it where the kernel cannot see to that and no socket tells of it."""
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent,), name="penstock-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    die()


def hear_of_parent() -> None:
    """From now on this process is only told: when its parent dies, or the thread that made it, SIGTERM comes."""
    _die_with_parent(signal.SIGTERM)


def _die_with_parent(number: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def die() -> None:
    """End this process and its whole group, at once; only for one that leads its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
