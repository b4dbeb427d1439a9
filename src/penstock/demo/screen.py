"""What is seen of the demo: coloured and moving on a terminal, plain lines elsewhere."""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from penstock.demo.tasks import Span

WIDTH: Final = 92
COLOURS: Final = ("cyan", "magenta", "yellow", "green")
_BAR: Final = 36
_READING: Final = 1.6  #: seconds in which a person reads what a chapter is about


@dataclass(slots=True)
class Report:
    """What was measured, for the table at the end."""

    rows: list[tuple[str, str]] = field(default_factory=list)

    def add(self, what: str, measured: str) -> None:
        self.rows.append((what, measured))

    def show(self) -> None:
        left = max(len(what) for what, _ in self.rows)
        for what, measured in self.rows:
            say(f"{what:<{left}}   {click.style(measured, bold=True)}")


def is_live() -> bool:
    """Somebody watches."""
    return sys.stdout.isatty()


async def chapter(title: str, code: str, text: str) -> None:
    """What comes next: a title, the line of code that it is about, a sentence, and time to read them."""
    heading(title)
    if code:
        say(click.style(code, fg="blue"))
    say(text)
    if is_live():
        await asyncio.sleep(_READING)


def heading(title: str) -> None:
    rule = _glyph("─", "-") * (WIDTH - len(title) - 1)
    click.echo(f"\n{click.style(title, bold=True)} {click.style(rule, dim=True)}")


def say(text: str) -> None:
    click.echo(f"  {text}")


def good(text: str) -> None:
    say(f"{click.style(_glyph('✓', '+'), fg='green', bold=True)} {text}")


def bad(text: str) -> None:
    say(f"{click.style(_glyph('✗', 'x'), fg='red', bold=True)} {text}")


def timeline(rows: Sequence[tuple[str, Span]], colours: Sequence[str]) -> None:
    """A line per run, from where it began to where it ended."""
    first, last = min(span[0] for _, span in rows), max(span[1] for _, span in rows)
    name_width = max(len(name) for name, _ in rows)
    room = WIDTH - name_width - 14

    def column(moment: float) -> int:
        return round((moment - first) / (last - first) * room)

    for (name, (began, ended)), colour in zip(rows, colours, strict=True):
        at, until = column(began), column(ended)
        bar = _glyph("█", "#") * max(until - at, 1)
        say(f"{name:<{name_width}}  {' ' * at}{click.style(bar, fg=colour)}")


def strip(texts: Sequence[str], colours: Sequence[str]) -> str:
    """One character after the other, each in its colour."""
    return "".join(click.style(text, fg=colour) for text, colour in zip(texts, colours, strict=True))


class Bar:
    """Progress: one line that moves on a terminal, a line per quarter elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._shown = 0
        self.known = total  #: how many there are so far
        self._began = time.monotonic()
        self._steps = 100 if is_live() else 4

    def step(self) -> None:
        self._done += 1
        if (at := self._done * self._steps // self._total) > self._shown:
            self._shown = at
            self._draw()

    def _draw(self) -> None:
        seconds = time.monotonic() - self._began
        more = "" if self.known == self._total else ", more to come"
        text = f"{self._done:,} of {self.known:,}{more}  {seconds:.1f} s"
        if is_live():
            end = "\n" if self._done == self._total else ""
            click.echo(f"\r\x1b[2K  {self._bar()} {text}{end}", nl=False)
        else:
            say(text)

    def _bar(self) -> str:
        full, known = (round(number / self._total * _BAR) for number in (self._done, self.known))
        done, waiting, none = (_glyph(*both) for both in (("█", "#"), ("▒", "+"), ("░", ".")))
        rest = waiting * (known - full) + none * (_BAR - known)
        return click.style(done * full, fg="green") + click.style(rest, dim=True)


def _glyph(character: str, plain: str) -> str:
    """A character, or what stands for it where it cannot be written."""
    try:
        character.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return plain
    return character
