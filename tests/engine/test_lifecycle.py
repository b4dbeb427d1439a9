"""One verb, one spelling: Lua file, engine method, row of the lifecycle table, test file and event agree."""

import re
from functools import cache
from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.engine.scripts import load
from penstock.model.header import STATES

ROOT = Path(__file__).parents[2]
LUA = ROOT / "src" / "penstock" / "engine" / "lua"
PAGE = ROOT / "docs" / "internals.md"
# The only methods that are no verb of their own: one more way to say reap.
SPOKEN_OTHERWISE = {"reap_worker": "reap"}
# recount has no life of its own: mending calls it, and the tests of reconcile test it.
TESTED_ELSEWHERE = {"recount"}
#: Functions whose first argument is the verb that is told in the event.
_TAKE_A_VERB = (
    "move",
    "line_up",
    "create",
    "add",
    "add_plain",
    "lines_begin",
    "settle",
    "end_cancelled",
    "bury",
    "cancel",
    "rerun",
    "start_retry",
    "end_unrun",
)
# An event that no verb of its own makes: lease found that a job has to wait for a lane.
BY_THE_WAY = {"hold"}


def _rows() -> dict[str, list[str]]:
    """Verb → the other cells of its row."""
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {verb: [cell.strip() for cell in rest.split("|")] for verb, rest in lines}


def _files() -> dict[str, str]:
    return {file.stem: file.read_text("utf-8") for file in LUA.joinpath("verbs").glob("*.lua")}


def _comment(text: str) -> str:
    """The leading comment in one line per entry."""
    lines = [line for line in text.splitlines() if line.startswith("--")]
    return re.sub(r"\n-- {4,}", " ", "\n".join(lines))


def _entry(text: str, what: str) -> str:
    match = re.search(rf"^-- {what}: (.*)$", _comment(text), re.MULTILINE)
    return match[1] if match else ""


def _announced(text: str) -> set[str]:
    """The verbs that the comment says it writes into the stream of events."""
    return set(re.findall(r"\w+", _entry(text, "event"))) & (_files().keys() | BY_THE_WAY)


def _written(text: str) -> set[str]:
    """The verbs that the code does write; a piece that takes the verb as an argument is counted where it is called."""
    lines = [line for part in (text, *_own_modules(text)) for line in part.splitlines()]
    code = "\n".join(line.partition("--")[0] for line in lines)
    written = set(re.findall(rf"\b(?:{'|'.join(_TAKE_A_VERB)})\('(\w+)'", code))
    written |= set(re.findall(r"fix\(transition\.move, '(\w+)'", code))
    written |= set(re.findall(r"show_waiters\([^']*'(\w+)'\)", code))
    return written | set(re.findall(r"\{ \{? ?'(\w+)', (?:queue|'')", code))


def _own_modules(text: str) -> list[str]:
    """The modules that only this file needs, directly or not."""
    shared = {name for other in _files().values() if other != text for name in _needed(other)}
    return [_module(name) for name in _needed(text) - shared]


@cache
def _needed(text: str) -> frozenset[str]:
    direct = frozenset(re.findall(r"\b(?:require |use\()'(\w+)'", text))
    return direct.union(*(_needed(_module(name)) for name in direct))


@cache
def _module(name: str) -> str:
    return (LUA / "lib" / f"{name}.lua").read_text("utf-8")


def test_every_file_is_a_script_a_method_and_a_row_of_the_page() -> None:
    methods = {name for name, method in vars(Engine).items() if "Call[" in str(getattr(method, "__annotations__", ""))}
    verbs = {SPOKEN_OTHERWISE.get(name, name) for name in methods}
    assert set(load()) == set(_files()) == verbs == set(_rows())


def test_every_verb_has_its_tests() -> None:
    tests = {file.stem.removeprefix("test_") for file in Path(__file__).parent.rglob("test_*.py")}
    assert _files().keys() - tests == TESTED_ELSEWHERE


@pytest.mark.parametrize("verb", sorted(_files()))
def test_a_file_opens_with_its_contract(verb: str) -> None:
    text = _files()[verb]
    assert text.startswith(f"-- {verb}: ")
    assert _entry(text, "KEYS"), "KEYS are missing"
    assert _entry(text, "ARGV"), "ARGV is missing"
    assert _entry(text, "returns"), "returns are missing"


@pytest.mark.parametrize("verb", sorted(_files()))
def test_a_file_writes_the_events_that_its_comment_says(verb: str) -> None:
    text = _files()[verb]
    announced = _announced(text)
    if verb == "reconcile":
        announced = {"bury"}
    assert _written(text) == announced


@pytest.mark.parametrize("verb", sorted(verb for verb, text in _files().items() if "→" in _entry(text, verb)))
def test_a_row_names_the_same_states_as_the_comment(verb: str) -> None:
    said = re.split(r"[.;]", _entry(_files()[verb], verb))[0]
    assert _states(said) == _states(_rows()[verb][0])


def _states(text: str) -> set[str]:
    return {state for state in STATES if re.search(rf"\b{state}\b", text)}
