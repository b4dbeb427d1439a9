"""A captured terminal as a picture: `tmux capture-pane -e -p | python tools/screen_to_svg.py TITLE > picture.svg`."""

import html
import re
import sys

WIDTH, HEIGHT, MARGIN, BAR = 8.4, 18, 16, 28
STYLE = "font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre"


def main() -> None:
    lines = _lines(sys.stdin.read())
    columns = max(len(text) for row in lines for text in ["".join(part for part, _ in row)])
    wide, high = columns * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN + BAR
    title = sys.argv[1] if len(sys.argv) > 1 else ""
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" role="img" aria-label="{title}">')
    print(f'<rect width="100%" height="100%" rx="8" fill="#11151c"/><g style="{STYLE}" fill="#d5dbe3">')
    for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        print(f'<circle cx="{MARGIN + number * 18}" cy="{BAR / 2 + 4}" r="5" fill="{colour}"/>')
    for at, row in enumerate(lines):
        y, column = BAR + MARGIN + at * HEIGHT + 8, 0
        for text, bold in row:
            weight = ' font-weight="bold" fill="#ffffff"' if bold else ""
            for word in re.finditer(r"\S+(?: \S+)*", text):  # each at its own place, whatever the font
                x, length = MARGIN + (column + word.start()) * WIDTH, len(word[0]) * WIDTH
                place = f'x="{x:.1f}" y="{y}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
                print(f"<text {place}{weight}>{html.escape(word[0])}</text>")
            column += len(text)
    print("</g></svg>")


def _lines(screen: str) -> list[list[tuple[str, bool]]]:
    """Per line its parts, each bold or not; empty lines at the end are left out."""
    lines, bold = [], False
    for line in screen.rstrip().splitlines():
        parts: list[tuple[str, bool]] = []
        for piece in re.split(r"(\x1b\[[\d;]*m)", line.rstrip()):
            if piece.startswith("\x1b["):
                codes = piece[2:-1].split(";")
                bold = "1" in codes or (bold and not {"0", "22", ""} & set(codes))
            elif piece:
                parts.append((piece, bold))
        lines.append(parts)
    return lines


if __name__ == "__main__":
    main()
