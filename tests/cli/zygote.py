"""Runs command lines in forks of a process that has imported everything: real processes without the slow start.

A request is a line of JSON on stdin: arguments, directory, environment, and the files for stdout and stderr. The answer
is the exit code.
"""

import importlib
import json
import os
import signal
import sys
from typing import Any

from penstock.cli.root import COMMANDS, main

LONGEST = 60  # seconds


def run(request: dict[str, Any]) -> None:
    signal.alarm(LONGEST)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
    main(request["arguments"], prog_name="penstock")


def serve() -> None:
    for module, _ in COMMANDS.values():
        importlib.import_module(module.partition(":")[0])
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            run(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
