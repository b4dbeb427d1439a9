"""Dying with one's parent."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def tie_to_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, where it can; elsewhere a closed pipe must say so."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def die() -> None:
    """End this process and its whole group, at once; only for one that leads its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
