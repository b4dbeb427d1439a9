"""The pages: every snippet works as it stands, every page is in the navigation, every link leads somewhere."""

import ast
import dataclasses
import inspect
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import penstock
from penstock.cli.root import main
from penstock.engine.keys import KINDS
from penstock.errors import BadOption
from penstock.http.schemas.requests import JobRequest
from penstock.model.options import Options, TaskOptions
from tests.conftest import namespace
from tests.servers import Server
from tools import reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "penstock"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
#: what a page takes for granted
BEFORE = {"http.md": 'from penstock import Penstock\napp = Penstock("shop")\n'}
#: pages whose snippets are tests of their own, and whole programs, which are run as such
ELSEWHERE = {"testing.md", "quickstart.md"}
MADE = {f"reference/{name}" for name in reference.PAGES}
COMMANDS = {"", "sh", "bash"}  #: languages of blocks that may have command lines


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """What stands in fences of a language, also in comments, where readers do not see it."""
    for language, text in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        if language in languages:
            yield text


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name)
async def test_every_snippet_of_a_page_runs_in_order(
    page: Path, single: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", single.url)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    name = namespace()
    for text in (BEFORE.get(page.name, ""), *blocks(page, "python")):
        await _run(text.replace('Penstock("shop"', f'Penstock("{name}"'), page, module)
    for app in {id(value): value for value in vars(module).values() if type(value).__name__ == "Penstock"}.values():
        await app.aclose()


async def _run(text: str, page: Path, module: ModuleType) -> None:
    """As in a notebook: `await` works at the top."""
    code: Any = compile(text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    made = eval(code, vars(module))
    if inspect.isawaitable(made):
        await made


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_command_line_of_a_page_can_be_parsed(page: Path) -> None:
    for block in blocks(page, *COMMANDS):
        for line in block.splitlines():
            words = shlex.split(line.replace("…", ""), comments=True)
            while words and "=" in words[0]:
                words.pop(0)
            if words[:1] == ["penstock"]:
                _parse(words[1:], line)


def _parse(words: list[str], line: str) -> None:
    command: click.Command = main
    parent: click.Context | None = None
    while isinstance(command, click.Group):
        parent = click.Context(command, parent=parent, info_name=command.name)
        subcommand = command.get_command(parent, words[0])
        assert subcommand is not None, f"no such command: {line}"
        command, words = subcommand, words[1:]
    try:
        command.make_context(command.name, [word for word in words if word != "|"], parent=parent)
    except click.ClickException as error:
        pytest.fail(f"{line}: {error.format_message()}")


def navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from navigation(value)


def test_every_page_is_in_the_navigation() -> None:
    listed = list(navigation(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]))
    assert len(listed) == len(set(listed))
    assert {page.name for page in PAGES} | MADE == set(listed)


def prose(page: Path) -> str:
    """A page without what stands in fences."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of headings, as the pages and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = prose(page)
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"\w+:", link) or path in MADE:
            continue
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


#: where the paths of a page begin
ROOTS = [ROOT, SOURCE, SOURCE / "engine" / "lua", ROOT / "tests"]
#: `lib/lanes.lua`, `worker/supervisor/`, or `worker/test_lanes`, a test file without its suffix
PATH = re.compile(r"`([\w./-]+(?:\.(?:py|lua|toml)|/)|[\w./-]+/test_\w+)`")


@pytest.mark.parametrize("page", ["architecture.md", "internals.md", "reliability.md", "../CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    names = {name if "." in name or name.endswith("/") else f"{name}.py" for name in PATH.findall(text)}
    names = {name for name in names if not re.search("[A-Z]{2}", name)}  # not `test_VERB.py`, which stands for many
    assert names
    assert {name for name in names if not any((root / name).exists() for root in ROOTS)} == set()
    linked = set(re.findall(r"github\.com/penstock/penstock/(?:blob|tree)/main/([^)\s…]*)", text))
    assert {name for name in linked if not (ROOT / name).exists()} == set()


def test_the_architecture_names_every_key_with_its_type() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", (DOCS / "architecture.md").read_text("utf-8"), re.MULTILINE)
    assert rows == list(KINDS.items())


def test_the_architecture_names_every_layer_in_order() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
    layers = [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    table = (DOCS / "architecture.md").read_text("utf-8").partition("| layer |")[2].partition("\n\n")[0]
    rows = [set(re.findall(r"\[`(\w+)(?:/|\.py)`\]", row.split("|")[1])) for row in table.splitlines()[2:]]
    assert rows == [layer - {"__main__"} for layer in layers]


def test_every_option_has_a_check_a_row_and_a_field_of_a_request() -> None:
    options = set(Options.__annotations__)
    assert options == {field.name for field in dataclasses.fields(TaskOptions)}
    for name in options:
        with pytest.raises(BadOption, match=name):
            TaskOptions().having({name: object()})
    table = (DOCS / "jobs.md").read_text("utf-8").partition("| option |")[2].partition("\n\n")[0]
    assert options == {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert options - set(JobRequest.__struct_fields__) == {
        "executor",
        "retry_on",
        "give_up_on",
    }  # Python alone has these


def test_the_reference_has_every_public_name_and_every_command(tmp_path: Path) -> None:
    reference.write(tmp_path)
    api = (tmp_path / "api.md").read_text("utf-8")
    for name in penstock.__all__:
        assert re.search(rf"^### {name}$|^\| `{name}` ", api, re.MULTILINE), name
    commands = (tmp_path / "cli.md").read_text("utf-8")
    for line in ("penstock worker", "penstock job reschedule", "penstock batch watch", "penstock doctor"):
        assert f"## {line}\n" in commands
