"""Data on stdout, as tables for people or as JSON for programs."""

import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from penstock.cli.terminal import echo
from penstock.model.printable import escaped, escaped_json

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints in the format that -o chose."""

    format: str

    @property
    def is_json(self) -> bool:
        return self.format == "json"

    def print_rows(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """Print a list: a JSON array, or a table of these columns; nothing if there are no rows."""
        if self.is_json:
            print_json(rows)
        elif rows:
            print_table(columns, [[row[name] for name in columns] for row in rows])

    def print_results(self, rows: Sequence[Row], show: Callable[[Row], None], separator: str | None = None) -> None:
        """Print the result for each thing named on the command line: one is a JSON object, several are an array."""
        if self.is_json:
            print_json(rows[0] if len(rows) == 1 else rows)
        else:
            for index, row in enumerate(rows):
                if index and separator is not None:
                    echo(separator)
                show(row)


def print_json(value: Any) -> None:
    """Print one line, or indented on a terminal."""
    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        click.echo(escaped_json(json.dumps(json.loads(encoded), indent=2, ensure_ascii=False)))
    else:
        print_json_line(encoded)


def print_json_line(value: Any, prefix: str = "") -> None:
    """Print a value, or JSON in bytes, as one line also on a terminal: for output of one line per thing."""
    encoded = value if isinstance(value, bytes) else msgspec.json.encode(value)
    click.echo(prefix + escaped_json(encoded.decode()))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, header: bool = True) -> None:
    """Print columns as wide as their widest cell, numbers right-aligned."""
    title, *lines = table_lines(columns, rows)
    if header:
        echo(title, bold=True)
    for line in lines:
        echo(line)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table, the first one with the titles."""
    titles = [name.replace("_", " ").upper() for name in columns]
    cells = [[ago(value) if isinstance(value, datetime) else format_cell(value) for value in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(titles, *cells, strict=True)]
    numeric = [all(map(_is_number, column)) for column in zip(*rows, strict=True)]
    return [_line(line, widths, numeric) for line in (titles, *cells)]


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _line(texts: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = zip(texts, widths, numeric, strict=True)
    return "  ".join(pad(text, size, right=right) for text, size, right in parts).rstrip()


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print a name and a value per line."""
    cells = [(name, format_cell(value)) for name, value in fields]
    name_width = max(width(name) for name, _ in cells)
    for name, text in cells:
        click.echo(f"{click.style(pad(name, name_width), bold=True)}  {escaped(text)}")


def format_cell(value: Any) -> str:
    """A value as one line of printable text; values may come from anybody."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return format_time(value)
        case list() | tuple():
            return escaped(",".join(map(str, value)))
    return escaped(str(value))


def format_time(value: datetime) -> str:
    """A time, and how far from now it is."""
    return f"{value:%Y-%m-%d %H:%M:%S} UTC ({ago(value)})"


def ago(value: datetime) -> str:
    away = (datetime.now(UTC) - value).total_seconds()
    return f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"


def span(seconds: float) -> str:
    """A duration with about two digits."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def plural(number: int, singular: str, many: str) -> str:
    """A number and its words: 1 job waits, 2,000 jobs wait."""
    return f"{number:,} {singular if number == 1 else many}"


def unless_same(reason: str | None, state: str) -> str | None:
    """The reason; None if it only repeats the state beside it."""
    return None if reason == state else reason


def width(text: str) -> int:
    """How many columns a text takes on a terminal."""
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, size: int, *, right: bool = False) -> str:
    space = " " * (size - width(text))
    return space + text if right else text + space
