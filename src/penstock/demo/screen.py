"""The output of the demo: coloured and moving on a terminal, plain lines elsewhere."""

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
_BAR_WIDTH: Final = 36
_READING_PAUSE: Final = 1.6  #: seconds in which a person reads the introduction of a chapter


@dataclass(slots=True)
class Report:
    """The measurements, for the table at the end."""

    rows: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, value: str) -> None:
        self.rows.append((name, value))

    def show(self) -> None:
        name_width = max(len(name) for name, _ in self.rows)
        for name, value in self.rows:
            say(f"{name:<{name_width}}   {click.style(value, bold=True)}")


def is_live() -> bool:
    """Whether the output is a terminal."""
    return sys.stdout.isatty()


async def chapter(title: str, code: str, text: str) -> None:
    """Introduce a chapter: its title, a line of code, a sentence, and time to read them."""
    heading(title)
    if code:
        say(click.style(code, fg="blue"))
    say(text)
    if is_live():
        await asyncio.sleep(_READING_PAUSE)


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
    """Print a line per run, from its start to its end."""
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
    """Characters in their colours, joined."""
    return "".join(click.style(text, fg=colour) for text, colour in zip(texts, colours, strict=True))


class Bar:
    """Progress: one line that moves on a terminal, a line per quarter elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._drawn_step = 0
        self.known = total  #: how many steps are known so far
        self._began = time.monotonic()
        self._steps = 100 if is_live() else 4

    def step(self) -> None:
        self._done += 1
        if (step := self._done * self._steps // self._total) > self._drawn_step:
            self._drawn_step = step
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
        full, known = (round(number / self._total * _BAR_WIDTH) for number in (self._done, self.known))
        done, waiting, none = (_glyph(*pair) for pair in (("█", "#"), ("▒", "+"), ("░", ".")))
        rest = waiting * (known - full) + none * (_BAR_WIDTH - known)
        return click.style(done * full, fg="green") + click.style(rest, dim=True)


def _glyph(character: str, plain: str) -> str:
    """A character, or its replacement if the output's encoding has none."""
    try:
        character.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return plain
    return character
