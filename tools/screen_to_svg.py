"""A captured terminal as a picture: `tmux capture-pane -e -p | python tools/screen_to_svg.py TITLE > picture.svg`."""

import html
import re
import sys

WIDTH, HEIGHT, MARGIN, BAR = 8.4, 18, 16, 28
COLOURS = ("#6b7280", "#ff7b72", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#39c5cf", "#d5dbe3")  # 30 to 37
DIM = "#5b6472"
STYLE = "font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre"


def main() -> None:
    draw(sys.stdin.read(), sys.argv[1] if len(sys.argv) > 1 else "")


def draw(screen: str, title: str) -> None:
    """Print the picture."""
    lines = _lines(screen)
    columns = max(len(text) for row in lines for text in ["".join(part for part, _ in row)])
    wide, high = columns * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN + BAR
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" role="img" aria-label="{title}">')
    print(f'<rect width="100%" height="100%" rx="8" fill="#11151c"/><g style="{STYLE}" fill="#d5dbe3">')
    for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        print(f'<circle cx="{MARGIN + number * 18}" cy="{BAR / 2 + 4}" r="5" fill="{colour}"/>')
    for at, row in enumerate(lines):
        y, column = BAR + MARGIN + at * HEIGHT + 8, 0
        for text, style in row:
            for word in re.finditer(r"\S+(?: \S+)*", text):  # each at its own place, whatever the font
                x, length = MARGIN + (column + word.start()) * WIDTH, len(word[0]) * WIDTH
                place = f'x="{x:.1f}" y="{y}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
                print(f"<text {place}{style}>{html.escape(word[0])}</text>")
            column += len(text)
    print("</g></svg>")


def _lines(screen: str) -> list[list[tuple[str, str]]]:
    """Per line its parts, each with its attributes; empty lines at the end are left out."""
    lines: list[list[tuple[str, str]]] = []
    codes: list[int] = []
    for line in screen.rstrip().splitlines():
        parts: list[tuple[str, str]] = []
        for piece in re.split(r"(\x1b\[[\d;]*m)", line.rstrip()):
            if piece.startswith("\x1b["):
                codes = _after(codes, [int(code or 0) for code in piece[2:-1].split(";")])
            elif piece:
                parts.append((piece, _style(codes)))
        lines.append(parts)
    return lines


def _after(codes: list[int], more: list[int]) -> list[int]:
    """What holds after these: 0 ends all, 39 the colour, 22 bold and dim."""
    for code in more:
        ended = {0: range(200), 39: range(30, 38), 22: range(1, 3)}.get(code, range(0))
        codes = [earlier for earlier in codes if earlier not in ended]
        codes += [code] if not ended else []
    return codes


def _style(codes: list[int]) -> str:
    colour = next((COLOURS[code - 30] for code in reversed(codes) if 30 <= code < 38), "")
    if 1 in codes:
        return f' font-weight="bold" fill="{colour or "#ffffff"}"'
    return f' fill="{colour or DIM}"' if colour or 2 in codes else ""


if __name__ == "__main__":
    main()
