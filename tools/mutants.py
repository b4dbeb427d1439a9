"""Breaks the Lua scripts on purpose, one guard at a time, and checks that a test notices: `make mutants`.

A mutant is one condition that is negated, one comparison that is shifted, or one call that is dropped. The tests of its
verb run first, then all tests of the engine, then those of the API. What every test passes is a survivor: it needs a
test, or the guard is not needed. Results are kept in `.mutants/`, so a run that was stopped goes on where it was.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
LUA: Final = Path("src/penstock/engine/lua")
RESULTS: Final = ROOT / ".mutants"
TEST_TIMEOUT: Final = 60  #: seconds for one test; a script that never ends is caught by it
RUN_TIMEOUT: Final = 900  #: seconds for all tests of one step
NEEDED: Final = 0.95  #: share that must be caught

_CONDITION: Final = re.compile(r"\b(if|elseif|while)\b(?P<condition>.+?)\b(then|do)\b")
_COMPARISONS: Final = {"<=": "<", ">=": ">", "==": "~=", "~=": "==", "<": "<=", ">": ">="}
_COMPARISON: Final = re.compile(r"<=|>=|==|~=|<|>")
_CALL: Final = re.compile(r"^\s*[\w.:]+\(.*\)\s*$")
_STRING: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


class Mutant(NamedTuple):
    """One change to one line of one script."""

    file: str  #: relative to the folder of the scripts
    line: int
    kind: str
    column: int
    text: str  #: the line as it becomes

    @property
    def key(self) -> str:
        return f"{self.file}:{self.line}:{self.kind}:{self.column}:{self.text.strip()}"


def main() -> int:
    """Sample mutants, run the tests on each, and print what survived."""
    arguments = _arguments()
    mutants = sample(arguments.number, arguments.seed, arguments.files)
    results = _load()
    waiting = [mutant for mutant in mutants if mutant.key not in results]
    print(f"{len(mutants)} mutants, {len(waiting)} of them to be run", flush=True)
    began = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {pool.submit(caught_by, mutant): mutant for mutant in waiting}
        for number, run in enumerate(as_completed(runs), 1):
            mutant, test = runs[run], run.result()
            results[mutant.key] = test
            _save(results)
            left = (time.monotonic() - began) / number * (len(waiting) - number)
            verdict = f"caught by {test}" if test else "SURVIVED"
            print(
                f"{number}/{len(waiting)}  {mutant.file}:{mutant.line} {mutant.kind}: {verdict}  ({left:.0f} s left)",
                flush=True,
            )
    return _report(mutants, results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=200, help="how many mutants (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones are drawn (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="how many are run at once (default 2)")
    parser.add_argument("files", nargs="*", help="only these scripts, such as verbs/complete.lua or lib/lanes.lua")
    return parser.parse_args()


def _report(mutants: list[Mutant], results: dict[str, str]) -> int:
    survivors = [mutant for mutant in mutants if not results[mutant.key]]
    for mutant in survivors:
        print(f"survived: {mutant.file}:{mutant.line} ({mutant.kind})\n    {mutant.text.strip()}")
    share = 1 - len(survivors) / max(len(mutants), 1)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught: {share:.1%}")
    return int(share < NEEDED)


def sample(number: int, seed: int, files: list[str]) -> list[Mutant]:
    """Draw mutants from all that can be made; the same ones for the same seed and scripts."""
    every = [mutant for mutant in all_mutants() if not files or mutant.file in files]
    return random.Random(seed).sample(every, min(number, len(every)))


def all_mutants() -> Iterator[Mutant]:
    """Every mutant of every script."""
    for path in sorted((ROOT / LUA).glob("*/*.lua")):
        name = str(path.relative_to(ROOT / LUA))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for kind, column, text in mutations(line):
                yield Mutant(name, number, kind, column, text)


def mutations(line: str) -> Iterator[tuple[str, int, str]]:
    """What can be changed in a line: kind, column, and the line as it becomes."""
    code = _blanked(line)
    for match in _CONDITION.finditer(code):
        start, end = match.span("condition")
        yield "negated", start, f"{line[:start]} not ({line[start:end].strip()}) {line[end:]}"
    for match in _COMPARISON.finditer(code):
        start, end = match.span()
        yield "shifted", start, line[:start] + _COMPARISONS[match[0]] + line[end:]
    if _CALL.match(code) and not code.lstrip().startswith(("return", "local", "require", "function")):
        yield "dropped", 0, ""


def _blanked(line: str) -> str:
    """The line with spaces instead of strings and its comment, so that columns stay."""
    code = _STRING.sub(lambda match: "'" + " " * (len(match[0]) - 2) + "'", line)
    comment = code.find("--")
    return code if comment < 0 else code[:comment] + " " * (len(code) - comment)


def caught_by(mutant: Mutant) -> str:
    """The first test that fails on this mutant; empty if none does."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        path = Path(folder) / LUA / mutant.file
        lines = path.read_text("utf-8").splitlines()
        lines[mutant.line - 1] = mutant.text
        path.write_text("\n".join(lines) + "\n", "utf-8")
        done: set[str] = set()
        for step in steps(mutant.file):
            tests = [test for test in step if test not in done]
            done.update(tests)
            if tests and (failed := first_failure(tests, source)):
                return failed
    return ""


def steps(file: str) -> Iterator[list[str]]:
    """The tests to run on a change of this file, those that are most likely to notice first."""
    module = Path(file).stem
    verbs = [module, *users(module)] if file.startswith("lib/") else [module]
    every = {path.stem: str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/engine").rglob("test_*.py"))}
    yield [every[f"test_{verb}"] for verb in verbs if f"test_{verb}" in every]
    slow = _makefile("SLOW")
    yield [path for name, path in every.items() if name.removeprefix("test_") not in slow]
    yield list(every.values())
    yield [f"tests/{part}" for part in ("api", "client", "worker") if (ROOT / "tests" / part).exists()]


@cache
def users(module: str) -> list[str]:
    """The verbs that ask for this module themselves."""
    files = sorted((ROOT / LUA / "verbs").glob("*.lua"))
    return [file.stem for file in files if re.search(rf"(require |use\()'{module}'", file.read_text("utf-8"))]


@cache
def _makefile(name: str) -> list[str]:
    """The words of a variable of the Makefile."""
    match = re.search(rf"^{name} *:= *(.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    return match[1].split() if match else []


def first_failure(tests: list[str], source: Path) -> str:
    """The name of the first test that fails; empty if all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "2",
        "--timeout",
        str(TEST_TIMEOUT),
        "-m",
        "not long",
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(RUN_TIMEOUT)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            _end(process)
        output.seek(0)
        text = output.read()
    if code == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return found[1] if found else f"a run that ended with {code}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """No process of a run outlives it: servers that a broken script keeps busy are among them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _load() -> dict[str, str]:
    file = RESULTS / "results.json"
    return dict(json.loads(file.read_text("utf-8"))) if file.exists() else {}


def _save(results: dict[str, str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    temporary = RESULTS / "results.json.new"
    temporary.write_text(json.dumps(results, indent=1), "utf-8")
    temporary.replace(RESULTS / "results.json")


if __name__ == "__main__":
    sys.exit(main())
