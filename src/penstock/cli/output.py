"""Data for people and for programs, on stdout."""

import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints in the form that was asked for."""

    form: str

    @property
    def is_json(self) -> bool:
        return self.form == "json"

    def listing(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """Rows: an array, or a table of some columns; no rows are no table."""
        if self.is_json:
            print_json(rows)
        elif rows:
            print_table(columns, [[row[name] for name in columns] for row in rows])

    def answers(self, rows: Sequence[Row], show: Callable[[Row], None], between: str | None = None) -> None:
        """What became of each thing that was named: one is an object, several are an array."""
        if self.is_json:
            print_json(rows[0] if len(rows) == 1 else rows)
        else:
            for at, row in enumerate(rows):
                if at and between is not None:
                    click.echo(between)
                show(row)


def print_json(value: Any) -> None:
    """One line for programs, several for people."""
    packed = msgspec.json.encode(value)
    click.echo(json.dumps(json.loads(packed), indent=2, ensure_ascii=False) if sys.stdout.isatty() else packed)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, header: bool = True) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
    title, *lines = table_lines(columns, rows)
    if header:
        click.secho(title, bold=True)
    for line in lines:
        click.echo(line)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The same as lines, the first of them the titles."""
    titles = [name.replace("_", " ").upper() for name in columns]
    cells = [[ago(value) if isinstance(value, datetime) else cell(value) for value in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(titles, *cells, strict=True)]
    numeric = [all(map(_is_number, column)) for column in zip(*rows, strict=True)]
    return [_line(line, widths, numeric) for line in (titles, *cells)]


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _line(texts: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = zip(texts, widths, numeric, strict=True)
    return "  ".join(pad(text, size, right=right) for text, size, right in parts).rstrip()


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """A name and a value per line."""
    shown = [(name, cell(value)) for name, value in fields]
    widest = max(width(name) for name, _ in shown)
    for name, value in shown:
        click.echo(f"{click.style(pad(name, widest), bold=True)}  {value}")


def cell(value: Any) -> str:
    """A value as one line of printable text, whatever somebody has put into it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return moment(value)
        case list() | tuple():
            return ",".join(map(str, value))
    return clean(str(value))


def clean(text: str) -> str:
    """Without what would move the cursor or colour the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def moment(value: datetime) -> str:
    """A time, and how far from now it is."""
    return f"{value:%Y-%m-%d %H:%M:%S} UTC ({ago(value)})"


def ago(value: datetime) -> str:
    away = (datetime.now(UTC) - value).total_seconds()
    return f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"


def span(seconds: float) -> str:
    """A duration as people say it: two digits are enough."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def counted(number: int, one: str, many: str) -> str:
    """A number and the words that go with it: 1 job waits, 2,000 jobs wait."""
    return f"{number:,} {one if number == 1 else many}"


def unlike(reason: str | None, state: str) -> str | None:
    """A reason that says more than the state beside it."""
    return None if reason == state else reason


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, size: int, *, right: bool = False) -> str:
    space = " " * (size - width(text))
    return space + text if right else text + space
