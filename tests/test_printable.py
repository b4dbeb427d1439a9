"""What a terminal is not shown: control and format characters, in names, in output and in logs."""

import ast
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock.cli
from penstock import Backoff, BadArguments, BadOption, Lane, Penstock
from penstock.cli.logs import JsonLines, TextLines
from penstock.model.printable import CONTROLS, escaped, escaped_json, escaped_lines

HIDDEN = "\x00\n\x1b\x7f\x85\x9b\xad\u061c\u200b\u200d\u200f\u2028\u202e\u2066\ufeff\U000e0041\ud800"
app = Penstock("printable", url="redis://127.0.0.1:1")


@app.task
def work(user: str = "") -> None:
    pass


def test_the_characters_refused_in_names_are_those_of_the_unicode_categories() -> None:
    pattern = re.compile(f"[{CONTROLS}]")
    everything = [chr(code) for code in range(sys.maxunicode + 1)]
    refused = {char for char in everything if pattern.match(char)}
    assert {char for char in everything if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}} <= refused
    assert {unicodedata.category(char) for char in refused} <= {"Cc", "Cf", "Cs", "Zl", "Zp", "Cn"}


@app.task(unique="user:{user}")
def _unique(user: str) -> None:
    pass


@app.task(lock="user:{user}")
def _locked(user: str) -> None:
    pass


# ruff: noqa: PLW0108  (the names of the functions would say less)
NAMES: dict[str, Callable[[str], Any]] = {
    "task": lambda name: app.task(name=name)(lambda: None),
    "queue": lambda name: work.using(queue=name),
    "id": lambda name: work.using(id=name),
    "unique": lambda name: work.using(unique=name),
    "unique, filled in": lambda name: _unique.call(name),
    "tag": lambda name: work.using(tags=[name]),
    "lock": lambda name: work.using(lock=name),
    "lock, filled in": lambda name: _locked.call(name),
    "lane": lambda name: Lane(name, limit=1),
    "lane on the live system": lambda name: app.lane(name),
    "lock on the live system": lambda name: app.lock(name),
    "redact": lambda name: work.using(redact=[name]),
    "batch": lambda name: app.batch(name),
    "id of a batch": lambda name: app.batch(id=name),
    "schedule": lambda name: app.every("1s", id=name)(work),
    "schedule at run time": lambda name: app.schedule(name),
    "namespace": lambda name: Penstock(name),
}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("char", HIDDEN, ids=lambda char: f"{ord(char):04X}")
def test_a_name_with_a_character_that_cannot_be_seen_is_refused(kind: str, char: str) -> None:
    with pytest.raises((BadOption, BadArguments)) as error:
        NAMES[kind](f"a{char}b")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("kind", [kind for kind in NAMES if kind not in {"queue", "namespace"}])
def test_a_name_in_any_script_is_allowed(kind: str) -> None:
    for name in ("größe", "注文", "заказ", "طلب", "café", "🦦"):
        NAMES[kind](f"{kind.replace(' ', '-')}-{name}")


def test_text_is_shown_with_codes_for_what_cannot_be_seen() -> None:
    assert escaped("größe 注文") == "größe 注文"
    assert escaped("\x1b[31m\x9b\u202e\n\ud800") == r"\x1b[31m\x9b\u202e\n\ud800"
    assert escaped_lines("a\x1b\n\tb\r\n") == "a\\x1b\n\\tb\\r\n"


def test_a_document_is_shown_with_the_codes_of_json_and_stays_the_same() -> None:
    value = {"größe": "\x00\x1b\x7f\x9b\u202e\u2028🦦\U000e0041"}
    text = escaped_json(json.dumps(value, ensure_ascii=False))
    assert text.isprintable()
    assert "größe" in text
    assert json.loads(text) == value


def _record(**fields: Any) -> logging.LogRecord:
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "got %s", (HIDDEN[:-1],), None)
    vars(record).update(fields)
    return record


@pytest.mark.parametrize("form", [TextLines(), JsonLines()])
def test_a_log_line_is_one_line_without_control_characters(form: logging.Formatter) -> None:
    line = form.format(_record(job="\x1b[2J", task="\u202etask"))
    assert line.isprintable()
    if isinstance(form, JsonLines):
        assert json.loads(line)["message"] == f"got {HIDDEN[:-1]}"


def test_the_traceback_of_a_log_line_has_lines_but_no_control_characters() -> None:
    try:
        int("\x1b]0;title\x07\u202e\n")
    except ValueError:
        text = TextLines().format(_record(exc_info=sys.exc_info()))
    first, *trace = text.split("\n")
    assert trace[0] == "Traceback (most recent call last):"
    assert all(line.isprintable() for line in (first, *trace))


def test_only_one_module_of_the_command_line_prints_text_that_others_may_have_written() -> None:
    """`click.echo` elsewhere prints literals of ours, such as the codes that move the cursor."""
    allowed = {"terminal.py", "output.py", "completion.py", "top.py"}
    for file in Path(penstock.cli.__file__).parent.glob("*.py"):
        if file.name not in allowed:
            lines = _echoed(ast.parse(file.read_text()))
            assert not lines, f"{file.name}:{lines}: use echo of penstock.cli.terminal"


def _echoed(tree: ast.AST) -> list[int]:
    """The lines of calls of `click.echo` and the like whose text is neither a literal nor begins with a return."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"click.echo", "click.secho", "print"}:
            text = node.args[0] if node.args else ast.Constant("")
            first = text.values[0] if isinstance(text, ast.JoinedStr) else text
            if not isinstance(first, ast.Constant) or (first is not text and not str(first.value).startswith("\r")):
                found.append(node.lineno)
    return found


def test_a_list_of_delays_is_bounded() -> None:
    work.using(backoff=[1] * 100)
    with pytest.raises(BadOption, match="101 delays are too many, 100 is the limit"):
        work.using(backoff=[1] * 101)
    assert Backoff() == work.options.backoff
