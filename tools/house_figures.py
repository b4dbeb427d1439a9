"""Counts what makes the code hard to read for a stranger: `python -m tools.house_figures [REVISION …]`.

Without a revision it counts the working tree; with two of them it prints both side by side. Most figures are counted.
Which functions encode, parse and store a job cannot be told from the text, so these are listed here, each with the
pattern by which it is recognised; `--verbose` prints what was counted. What a warm enqueue and a whole life run is
traced: a program of that revision enqueues a job on an embedded server, and every function that is entered is noted.
"""

import argparse
import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = Path("src/penstock")
LUA: Final = PACKAGE / "engine" / "lua"
MAX_COLUMNS: Final = 120
MAX_LUA_LINES: Final = 60
TRACE_TIMEOUT: Final = 60  #: seconds


class Pattern(NamedTuple):
    """A piece of code that has to be counted by hand: where it is, and how it is recognised."""

    files: str
    pattern: str


#: In the order of their history: those of the many shapes first, those of the one record behind them.
ENCODERS: Final = (
    Pattern("stored.py", r"^def pack\("),
    Pattern("*.lua", r"^local function record_of\("),
    Pattern("*.lua", r"struct\.pack\('>BBI8BI8', h\[PRIORITY\]"),
    Pattern("record.py", r"^def write\("),
    Pattern("record.lua", r"^(?:local )?function (?:\w+\.)?encode\("),
)
PARSERS: Final = (
    Pattern("stored.py", r"^def kind\("),
    Pattern("*.lua", r"string\.match\(.*\\31\(?%d\*\)?\\31"),
    Pattern("record.py", r"^def _shared\("),
)
#: Ways of enqueue to store a job: first as they were, then since one way leads to plain jobs with and without a lane.
OLD_WRITE_PATHS: Final = (
    Pattern("*.lua", r"^local function enter_(?:by_letter|single|page|line)\("),
    Pattern("enqueue.lua", r"^local function line_up_(?:plain|laned)\("),
)
WRITE_PATHS: Final = (
    Pattern("*.lua", r"^local function enter_(?:plain|simple|any)\("),
    Pattern("enqueue_plain.lua", r"^function M\.enter\("),
)
#: What the comments of a script told its build; a conventional build has none of these.
DIRECTIVE: Final = re.compile(r"^-- (flags|keys|include|kept|few|on demand|unchecked)(?=[: ]|$)|\S +-- (kept)\b")
#: Formats of struct, marks of msgpack, and offsets of two digits, written where they are used.
RAW_LUA: Final = re.compile(
    r"struct\.(?:un)?pack\('[<>]|\b(?:un)?numbers\('[<>]|'[^']*\\(?:1[4-9]\d|2[0-2]\d)|"
    r"(?<![\w.])(?:14[4-9]|15\d|19[2-9]|20[1-9]|21\d|22[0-3])(?![\w.])|\bat [+-] \d\d\b"
)
RAW_PYTHON: Final = re.compile(r"Struct\(f?\"[<>=!]|struct\.(?:un)?pack\w*\(f?\"|\b0x(?:9|[cdCD])[0-9a-fA-F]\b")
DECLARATIONS: Final = ("engine/record/", "stored.py")  #: where raw numbers of the record belong
OLD_WORDS: Final = (
    *("letter", "letters", "mailbox", "mailboxes", "by_letter", "alike", "told", "news", "desk", "reborn", "rebirth"),
    *("burial", "tether", "offspring", "hub", "exposition", "patience", "punctual", "trouble", "sleeper", "sleepers"),
    *("bear", "talk", "steer", "steering", "memo", "notes", "spoilt", "stray", "strays", "mend", "mended", "mending"),
)
OLD_LOCALS: Final = ("found", "one", "given")


class Tree:
    """The files of one revision, or of the working tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / PACKAGE

    @cached_property
    def python(self) -> dict[str, str]:
        """Path below the package → text."""
        return self._texts("*.py")

    @cached_property
    def lua(self) -> dict[str, str]:
        return self._texts("*.lua")

    def _texts(self, glob: str) -> dict[str, str]:
        files = sorted(self.package.rglob(glob))
        return {str(file.relative_to(self.package)): file.read_text("utf-8") for file in files}

    def matches(self, patterns: Iterable[Pattern]) -> list[str]:
        """Where the listed pieces of code are: file, line and text."""
        return [
            f"{name}:{number}: {line.strip()}"
            for pattern in patterns
            for name, text in (self.python | self.lua).items()
            if Path(name).match(pattern.files)
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern.pattern, line)
        ]

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        return {name: ast.parse(text) for name, text in self.python.items()}


Value = list[str] | int | str  #: a list is counted, and printed by --verbose


class Figure(NamedTuple):
    name: str
    measure: Callable[[Tree], Value]


def shapes(tree: Tree) -> list[str]:
    """What `jobs` may hold of a job: the classes of stored.py and the header beside them, or the declared record."""
    if "stored.py" in tree.python:
        classes = [node.name for node in tree.modules["stored.py"].body if isinstance(node, ast.ClassDef)]
        return ["Header", *classes]
    return tree.matches([Pattern("record/layout.py", r"^HEAD: Final")])


def write_paths(tree: Tree) -> list[str]:
    return tree.matches(WRITE_PATHS) or tree.matches(OLD_WRITE_PATHS)


def raw_numbers_lua(tree: Tree) -> list[str]:
    lines = ((name, number, line) for name, text in tree.lua.items() for number, line in _code_of_lua(text))
    return [f"{name}:{number}: {hit[0]}" for name, number, line in lines for hit in RAW_LUA.finditer(line)]


def raw_numbers_python(tree: Tree) -> list[str]:
    """In the code that knows what is stored, outside of the declaration."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in tree.python.items()
        if name.startswith("engine/") and not name.startswith(DECLARATIONS)
        for number, line in enumerate(text.splitlines(), 1)
        if RAW_PYTHON.search(line)
    ]


def _code_of_lua(text: str) -> Iterator[tuple[int, str]]:
    """Lines without their comments."""
    for number, line in enumerate(text.splitlines(), 1):
        yield number, re.sub(r"--.*", "", line)


def listed_way(tree: Tree, last: str) -> list[str]:
    """The files that docs/architecture.md names on the way of a job, up to the section of this name."""
    page = tree.root / "docs" / "architecture.md"
    text = page.read_text("utf-8") if page.exists() else ""
    way = text.partition("## The way of a job")[2].partition(last)[0]
    return re.findall(r"^\d+\. \[`([\w/.]+)`\]", way, re.MULTILINE)


def way_of_an_enqueue(tree: Tree) -> Value:
    return listed_way(tree, "### 2. ") or "-"


def way_of_a_life(tree: Tree) -> Value:
    return listed_way(tree, "### Meanwhile") or "-"


def broken_steps(tree: Tree) -> Value:
    """Files on that way that are not there, or that no file before them imports or names."""
    broken, before = list[str](), ""
    for name in (way := listed_way(tree, "### Meanwhile")):
        text = (tree.python | tree.lua).get(name)
        if text is None:
            broken.append(f"{name} is missing")
            continue
        module = "penstock." + name.removesuffix(".py").replace("/", ".")
        verb = f'"{Path(name).stem}"'
        if before and module not in before and verb not in before and not _imported_by_any(tree, module):
            broken.append(f"{name} is imported by nothing")
        before += text
    return broken if way else "-"


def _imported_by_any(tree: Tree, module: str) -> bool:
    return any(f"from {module} import" in text for text in tree.python.values())


def layers(tree: Tree) -> list[str]:
    return [layer for contract in _contracts(tree)[:1] for layer in contract["layers"]]


def modules_in_no_layer(tree: Tree) -> list[str]:
    named = set(re.findall(r"\w+", " ".join(layers(tree))))
    return sorted(set(top_level_modules(tree)) - named - {"__init__"})


def _contracts(tree: Tree) -> list[dict[str, list[str]]]:
    settings = tomllib.loads((tree.root / "pyproject.toml").read_text("utf-8"))
    contracts: list[dict[str, list[str]]] = settings["tool"]["importlinter"]["contracts"]
    return [contract for contract in contracts if "layers" in contract]


def top_level_modules(tree: Tree) -> list[str]:
    return sorted({name.split("/")[0].removesuffix(".py") for name in tree.python})


def flat_modules(tree: Tree) -> list[str]:
    return sorted(name for name in tree.python if "/" not in name and not name.startswith("_"))


_NAMED: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def two_meanings(tree: Tree) -> list[str]:
    """Classes and functions of one name at the top of two modules."""
    where: dict[str, list[str]] = defaultdict(list)
    for name, module in tree.modules.items():
        for node in module.body:
            if isinstance(node, _NAMED) and not node.name.startswith("_"):
                where[node.name].append(name)
    return [f"{name}: {', '.join(files)}" for name, files in sorted(where.items()) if len(files) > 1]


def classes_with_two_meanings(tree: Tree) -> list[str]:
    return [row for row in two_meanings(tree) if row[0].isupper()]


def old_words(tree: Tree) -> list[str]:
    """Names, comments and texts with a word of the old vocabulary; a dead letter is one of the field's."""
    pattern = re.compile(rf"(?<!dead )(?<![a-z])({'|'.join(OLD_WORDS)})(?![a-z])", re.IGNORECASE)
    return [
        f"{name}:{number}: {hit[1].lower()}"
        for name, text in (tree.python | tree.lua).items()
        for number, line in enumerate(text.splitlines(), 1)
        for hit in pattern.finditer(line)
    ]


def old_locals(tree: Tree) -> list[str]:
    """Variables of Python that are called `found`, `one` or `given`."""
    return [
        f"{name}:{node.lineno}: {node.id}"
        for name, module in tree.modules.items()
        for node in ast.walk(module)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in OLD_LOCALS
    ]


def long_lua_lines(tree: Tree) -> list[str]:
    return [
        f"{name}:{number}"
        for name, text in tree.lua.items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]


def long_lua_files(tree: Tree) -> list[str]:
    return [f"{name}: {n} lines" for name, text in tree.lua.items() if (n := len(text.splitlines())) > MAX_LUA_LINES]


def directives(tree: Tree) -> list[str]:
    """The directive of each line that has one which the build of the scripts looks for."""
    build = "".join(text for name, text in tree.python.items() if name in {"engine/functions.py", "engine/scripts.py"})
    lines = [line for text in tree.lua.values() for line in text.splitlines()]
    kinds = [hit[1] or hit[2] for line in lines for hit in DIRECTIVE.finditer(line)]
    return [kind for kind in kinds if f'"{kind}"' in build or f"-- {kind}" in build]


def directive_kinds(tree: Tree) -> list[str]:
    return sorted(set(directives(tree)))


def directive_lines(tree: Tree) -> int:
    return len(directives(tree))


def duplicate_pairs(tree: Tree) -> int | str:
    """Of the package, by the command `duplicates` if this machine has it."""
    command = shutil.which("duplicates")
    if not command:
        return "-"
    done = subprocess.run([command, "--repo", str(tree.package)], capture_output=True, text=True, check=False)
    hit = re.match(r"(\d+) pairs", done.stdout)
    return int(hit[1]) if hit else "-"


def lines_of_python(tree: Tree) -> int:
    return sum(map(_code_lines, tree.python.values()))


def _code_lines(text: str) -> int:
    """Lines with code: no blank ones, no comments, no docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and before in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        if token.type not in skipped and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in {tokenize.COMMENT, tokenize.NL}:
            before = token.type
    return len(lines)


def lines_of_lua(tree: Tree) -> int:
    return sum(bool(line.strip()) for text in tree.lua.values() for _, line in _code_of_lua(text))


def lines_of_tests(tree: Tree) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in (tree.root / "tests").rglob("*.py"))


TRACED: Final = """
import asyncio, json, os, sys
import penstock
from penstock import Penstock
package = os.path.dirname(penstock.__file__) + os.sep
app = Penstock("figures", url=sys.argv[1])
seen = set()

@app.task(name="run")
async def run(n: int) -> int:
    return n

def note(frame, event, _):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(package):
        seen.add(name.removeprefix(package))

async def main():
    async with app:
        await run.enqueue(1)
        sys.setprofile(note)
        await run.enqueue(2)
        sys.setprofile(None)
        enqueued = sorted(seen)
        seen.clear()
        async with app.worker():
            await (await run.enqueue(3)).result(timeout=20)
            sys.setprofile(note)
            await (await run.enqueue(4)).result(timeout=20)
            sys.setprofile(None)
        print(json.dumps([enqueued, sorted(seen)]))

asyncio.run(main())
"""


def traced(tree: Tree) -> tuple[list[str], list[str]]:
    """The files whose functions a warm enqueue runs, and those from enqueue to result; empty if it cannot be run."""
    with tempfile.TemporaryDirectory(prefix="figures-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        environment |= {"PYTHONPATH": str(tree.package.parent), "PENSTOCK_EMBEDDED_LINGER": "0.1"}
        command = [sys.executable, "-c", TRACED, f"embedded:///{folder}/data"]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=TRACE_TIMEOUT
            )
        except (subprocess.SubprocessError, OSError):
            return [], []
    enqueued, lived = json.loads(done.stdout)
    return enqueued, lived


def figures(tree: Tree) -> dict[str, Value]:
    enqueued, lived = traced(tree)
    values: dict[str, Value] = {figure.name: figure.measure(tree) for figure in FIGURES}
    values["Python files that a warm enqueue runs (traced)"] = enqueued or "-"
    values["Python files from enqueue to result (traced)"] = lived or "-"
    return values


FIGURES: Final = (
    Figure("stored shapes of a job", shapes),
    Figure("encoders of a job (listed)", lambda tree: tree.matches(ENCODERS)),
    Figure("parsers of a label (listed)", lambda tree: tree.matches(PARSERS)),
    Figure("write paths of enqueue (listed)", write_paths),
    Figure("raw numbers in Lua", raw_numbers_lua),
    Figure("raw numbers in Python, outside the declaration", raw_numbers_python),
    Figure("files from task.enqueue to the script (docs/architecture.md)", way_of_an_enqueue),
    Figure("files of a whole life (docs/architecture.md)", way_of_a_life),
    Figure("of these missing, or imported by nothing", broken_steps),
    Figure("layers", layers),
    Figure("modules and packages in no layer", modules_in_no_layer),
    Figure("modules beside the packages, at the top", flat_modules),
    Figure("names with two meanings: classes and functions", two_meanings),
    Figure("names with two meanings: classes alone", classes_with_two_meanings),
    Figure("words of the old vocabulary", old_words),
    Figure("variables called found, one or given", old_locals),
    Figure(f"Lua lines over {MAX_COLUMNS} columns", long_lua_lines),
    Figure(f"Lua files over {MAX_LUA_LINES} lines", long_lua_files),
    Figure("Lua files", lambda tree: len(tree.lua)),
    Figure("kinds of comment directives of the script build", directive_kinds),
    Figure("lines with such a directive", directive_lines),
    Figure("duplicate pairs in the package", duplicate_pairs),
    Figure("lines of Python code", lines_of_python),
    Figure("lines of Lua code", lines_of_lua),
    Figure("lines of tests", lines_of_tests),
)


def checkout(revision: str, folder: Path) -> Tree:
    """The files of a revision, unpacked into this folder."""
    command = ["git", "archive", revision, "src", "docs", "tests", "pyproject.toml"]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return Tree(folder)


def table(columns: dict[str, dict[str, Value]]) -> str:
    """One row per figure, one column per revision."""
    names = list(next(iter(columns.values())))
    width = max(map(len, names))
    widths = {revision: max(len(revision), 6) for revision in columns}
    rows = [" ".join([" " * width, *(f"{revision:>{widths[revision]}}" for revision in columns)])]
    for name in names:
        cells = [f"{_number(values[name])!s:>{widths[revision]}}" for revision, values in columns.items()]
        rows.append(" ".join([f"{name:<{width}}", *cells]))
    return "\n".join(rows)


def _number(value: Value) -> int | str:
    return len(value) if isinstance(value, list) else value


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="*", help="such as abbe97c HEAD; without one, the working tree")
    parser.add_argument("--verbose", action="store_true", help="print what was counted, too")
    arguments = parser.parse_args()
    columns: dict[str, dict[str, Value]] = {}
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        for number, revision in enumerate(arguments.revisions):
            columns[revision] = figures(checkout(revision, Path(folder) / str(number)))
        if not arguments.revisions:
            columns["now"] = figures(Tree(ROOT))
    print(table(columns))
    if arguments.verbose:
        for revision, values in columns.items():
            for name, value in values.items():
                if isinstance(value, list):
                    print(f"\n{revision}: {name}: {len(value)}")
                    print(*(f"    {row}" for row in value), sep="\n")


if __name__ == "__main__":
    main()
