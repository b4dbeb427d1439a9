"""Text that a terminal shows as it is: checks for names, and escapes for whatever else is shown.

A control character moves the cursor or colours the terminal; a format character is invisible or turns the direction
of the text, so that two names look the same, or one looks like another.
"""

import re
from typing import Final

#: Control characters, U+0000 to 001F and U+007F to 009F; format characters (category Cf), which are marks of direction,
#: joiners, tags and the like; separators of lines and paragraphs; and surrogates, which no encoding can hold.
CONTROLS: Final = (
    "\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001-\U000e007f"
)
NOT_PRINTABLE: Final = "control or invisible characters"  #: in an error about a name
_SHOWN_AS_CODE: Final = re.compile(r"[\x7f-\x9f]|[^\x00-\x7f]")


def escaped(text: str) -> str:
    """The text in one line: characters that a terminal would not show are shown by their codes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def escaped_lines(text: str) -> str:
    """The same for text of several lines, which it keeps."""
    return text if text.isprintable() else "\n".join(map(escaped, text.split("\n")))


def escaped_json(text: str) -> str:
    r"""The same document with \u escapes for characters that a terminal would not show."""
    return text if text.isascii() and "\x7f" not in text else _SHOWN_AS_CODE.sub(_json_code, text)


def _json_code(match: re.Match[str]) -> str:
    if match[0].isprintable():
        return match[0]
    raw = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at : at + 2].hex()}" for at in range(0, len(raw), 2))
