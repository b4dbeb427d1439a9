"""The picture of the demo: `python -m tools.demo_picture > docs/images/demo.svg`, on a machine with nothing else to do.

The demo runs on a terminal of its own; what stays on the screen at the end is drawn, without the chapters in between.
"""

import os
import pty
import re
import sys

from tools.screen_to_svg import draw

SHOWN = ("1 ", "8 ", "Measured")  #: how the chapters begin
LEFT_OUT = "\x1b[2m  …\x1b[0m"


def main() -> None:
    chapters = re.split(r"\n(?=\x1b\[1m)", _screen(_run()))
    shown = [next(text for text in chapters if _plain(text).startswith(name)) for name in SHOWN]
    first, *others = (text.rstrip() for text in shown)
    draw("\n\n".join([first, LEFT_OUT, *others]), "penstock demo")


def _run() -> str:
    """Run the demo; all that it writes to a terminal."""
    written = []

    def read(terminal: int) -> bytes:
        data = os.read(terminal, 65536)
        written.append(data)
        sys.stderr.buffer.write(data)
        sys.stderr.flush()
        return b"." if data else data  # what is returned would be copied to stdout, which is the picture

    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    pty.spawn([sys.executable, "-m", "penstock.demo"], read, lambda _: b"")
    os.dup2(out, 1)
    return b"".join(written).decode()


def _screen(text: str) -> str:
    """What stays on the screen: of a line that was rewritten, the last version."""
    return "\n".join(line.rpartition("\r\x1b[2K")[2] for line in text.replace("\r\n", "\n").splitlines())


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


if __name__ == "__main__":
    main()
