"""Bar charts as SVG, by hand: a plotting library would be the largest dependency of this repository."""

import math
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
LEFT: Final = 130  #: room for names
RIGHT: Final = 110  #: room for figures
ROW: Final = 24
TOP: Final = 56
OURS: Final = "#0b7285"
YARDSTICK: Final = "#868e96"
OTHERS: Final = "#adb5bd"


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    label: str
    colour: str = OTHERS


def bars(title: str, note: str, rows: list[Bar], *, logarithmic: bool = False) -> str:
    """A horizontal bar for each row. A logarithmic scale begins at a power of ten below the smallest."""
    height = TOP + ROW * len(rows) + 12
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="16" font-weight="600" fill="#212529">{escape(title)}</text>',
        f'<text x="12" y="42" fill="#495057">{escape(note)}</text>',
    ]
    lengths = _lengths([row.value for row in rows], logarithmic=logarithmic)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        y = TOP + ROW * i
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end" fill="#212529">{escape(row.name)}</text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" fill="{row.colour}"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{y + 16}" fill="#212529">{escape(row.label)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def _lengths(values: list[float], *, logarithmic: bool) -> list[float]:
    room = WIDTH - LEFT - RIGHT
    if not logarithmic:
        return [max(1.0, room * value / (max(values) or 1)) for value in values]
    logs = [math.log10(max(value, 1e-3)) for value in values]
    low = math.floor(min(logs))
    span = (max(logs) - low) or 1
    return [max(1.0, room * (log - low) / span) for log in logs]
