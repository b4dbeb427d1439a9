"""`python -m benchmarks.adapters NAME`: answers the harness; `… NAME work`: a worker of a system without a command."""

import asyncio
import importlib
import os
import sys

from benchmarks.adapters.serve import serve


def main(name: str, *work: str) -> None:
    # The line protocol has the real stdout for itself: what a system prints goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module = importlib.import_module(f"benchmarks.adapters.{name}")
    coroutine = module.work() if work else serve(module.Sender(), answers)
    try:
        import uvloop  # noqa: PLC0415 - where the environment has it
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)


if __name__ == "__main__":
    main(*sys.argv[1:])
