"""Pages made from the source: `python tools/reference.py docs/reference`.

Signatures and comments are taken from the source itself, so that they read as they were written.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import click

import penstock
from penstock.cli.root import main as command_line

WIDTH = 110  #: a signature that is longer has a line per parameter

#: headings, and what stands under them: module:name
PARTS = {
    "The app": ["penstock.app:Penstock"],
    "Tasks": [
        "penstock.api.task:Task",
        "penstock.model.options:Options",
        "penstock.api.task:Call",
        "penstock.model.backoff:Backoff",
        "penstock.model.lanes:Lane",
    ],
    "Jobs": ["penstock.api.job:Job", "penstock.api.job:JobStatus", "penstock.api.job:Failure"],
    "Inside a task": [
        "penstock.api.context:current_job",
        "penstock.api.context:JobContext",
        "penstock.model.control_flow:Retry",
        "penstock.model.control_flow:Snooze",
        "penstock.model.control_flow:Bury",
    ],
    "Batches": ["penstock.api.batch:Batch", "penstock.model.batch_state:BatchStatus"],
    "Schedules": [
        "penstock.api.schedule:Schedule",
        "penstock.api.schedule:ScheduleStatus",
        "penstock.api.schedule:Tick",
    ],
    "Workers": ["penstock.worker.worker:Worker"],
    "Watching and steering": [
        "penstock.api.events:Event",
        "penstock.api.queue:QueueControl",
        "penstock.api.queue:QueueStatus",
        "penstock.worker.queue_stream:QueueLease",
        "penstock.api.lane:LaneControl",
        "penstock.engine.read.lane_views:LaneStatus",
        "penstock.api.selection:Selection",
        "penstock.engine.read.dead_groups:DeadGroup",
    ],
    "Codecs": [
        "penstock.contrib.encrypt:Sealed",
        "penstock.contrib.encrypt:Compressed",
        "penstock.model.payload_codec:PayloadCodec",
        "penstock.model.payload_codec:About",
    ],
    "Access over HTTP": ["penstock.http.principal:Principal", "penstock.http.trusted_header:Trust"],
    "Testing": [
        "penstock.testing.sandbox:Sandbox",
        "penstock.testing.clock:Clock",
        "penstock.testing.recorder:Enqueued",
    ],
}
ERRORS = "penstock.errors"
USER_CREATED = {"Penstock", "Retry", "Snooze", "Bury", "Sealed", "Compressed"}  #: classes whose constructor is public
MADE = "<!-- made from the source by tools/reference.py -->"


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text("\n".join(page()) + "\n", "utf-8")


def api() -> Iterator[str]:
    yield from (MADE, "# Python", "", "What can be imported from `penstock`, and what its methods give.")
    for title, names in PARTS.items():
        yield from ("", f"## {title}")
        for path in names:
            module, _, name = path.partition(":")
            yield from _definition(importlib.import_module(module), name)
    yield from ("", "## Errors", "", "| error | |", "|---|---|")
    for node in _tree(importlib.import_module(ERRORS)).body:
        if isinstance(node, ast.ClassDef) and node.name in penstock.__all__:
            yield f"| `{node.name}` | {_one_line(node)} |"


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _definition(module: ModuleType, name: str) -> Iterator[str]:
    lines = inspect.getsource(module).splitlines()
    definitions = [node for node in _tree(module).body if getattr(node, "name", None) == name]
    for node in definitions[-1:]:  # the last of several is the one that is not only for type checkers
        yield from ("", f"### {name}", "", _text(node))
        if isinstance(node, ast.ClassDef):
            yield from _fields(node, lines)
            yield from _methods(node)
        elif isinstance(node, ast.FunctionDef):
            yield from ("", *_signature(node))


def _fields(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    """The fields of a data class, with the comments beside them."""
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)]
    if public := [field for field in fields if not ast.unparse(field.target).startswith("_")]:
        yield from ("", "| | | |", "|---|---|---|")
        for field in public:
            kind = ast.unparse(field.annotation).replace("|", "\\|")
            _, _, comment = lines[(field.end_lineno or field.lineno) - 1].partition("#: ")
            default = f" = {ast.unparse(field.value)}" if field.value is not None else ""
            yield f"| `{ast.unparse(field.target)}` | `{kind}{default}` | {comment.replace('|', chr(92) + '|')} |"


def _methods(node: ast.ClassDef) -> Iterator[str]:
    """The public methods; a `_sync` twin is only mentioned beside its async method."""
    functions = [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = {function.name: function for function in functions if not _has(function, "overload")}
    assigned = {ast.unparse(child.targets[0]) for child in node.body if isinstance(child, ast.Assign)}
    for name, method in methods.items():
        twin_of_another = name.endswith("_sync") and name.removesuffix("_sync") in methods
        is_constructor = name == "__init__" and node.name in USER_CREATED
        if (name.startswith("_") and not is_constructor) or twin_of_another:
            continue
        if not is_constructor:
            yield from ("", f"#### {name}")
        yield from ("", *_signature(method, node.name))
        twin = f"From blocking code: `{name}_sync`." if f"{name}_sync" in methods.keys() | assigned else ""
        if text := " ".join(part for part in (_text(method), twin) if part):
            yield from ("", text)


def _has(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(ast.unparse(expression) == decorator for expression in node.decorator_list)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str = "") -> Iterator[str]:
    arguments = node.args
    if owner and not _has(node, "staticmethod"):
        (arguments.posonlyargs or arguments.args).pop(0)  # self
    name = owner if node.name == "__init__" else node.name
    returns = f" -> {ast.unparse(node.returns)}".replace("'", "") if node.returns and node.name != "__init__" else ""
    begin = "async def " if isinstance(node, ast.AsyncFunctionDef) else "" if node.name == "__init__" else "def "
    yield "```python"
    if _has(node, "property"):
        yield f"{name}:{returns.removeprefix(' ->')}"
    elif len(line := f"{begin}{name}({ast.unparse(arguments)}){returns}") <= WIDTH:
        yield line
    else:
        yield from (f"{begin}{name}(", *(f"    {parameter}," for parameter in _parameters(arguments)), f"){returns}")
    yield "```"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    """Each parameter as it was written, and the marks between them."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True), 1):
        yield _parameter(argument, default)
        if index == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def _text(node: ast.AST) -> str:
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ""
    return text or ""


def _one_line(node: ast.ClassDef) -> str:
    return " ".join(_text(node).split()).replace("|", "\\|")


def cli() -> Iterator[str]:
    yield from (MADE, "# Command line", "", "```", click.Context(command_line, info_name="penstock").get_help(), "```")
    yield from _commands(command_line, click.Context(command_line, info_name="penstock"))


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, parent=context, info_name=name)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        else:
            yield from ("", f"## {inner.command_path}", "", "```", command.get_help(inner), "```")


PAGES: dict[str, Callable[[], Iterator[str]]] = {"api.md": api, "cli.md": cli}

if __name__ == "__main__":
    write(Path(sys.argv[1]))
