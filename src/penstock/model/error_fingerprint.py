"""A fingerprint of an error: its class, its message without variable parts, and the innermost frame of user code."""

import hashlib
import json
import re
from typing import Final

_LENGTH: Final = 12  #: characters
_MAX_MESSAGE: Final = 200  #: characters of a normalised message that count
_FRAME: Final = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
_FOREIGN: Final = re.compile(r"site-packages|dist-packages|/lib/python\d|/penstock/|<frozen|<string>")
# In this order: what is longer and more special first.
_VARYING: Final = (
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<uuid>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<hex>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ][\d:.+Z-]+"), "<time>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)


def error_fingerprint(error: str, reason: str = "") -> str:
    """The fingerprint of a stored error (JSON), or of the reason if there is no error; a sealed error has its own."""
    if given := _given(error):
        return given
    kind, message, trace = _parts(error)
    if not kind and not message:
        kind = reason
    text = "\n".join((kind, normalised(message), own_frame(trace)))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_LENGTH]


def normalised(message: str) -> str:
    """The first line of a message, with a placeholder for whatever differs from one job to the next."""
    text = message.partition("\n")[0][: _MAX_MESSAGE * 4]
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text[:_MAX_MESSAGE]


def own_frame(trace: str) -> str:
    """File and function of the innermost frame in the user's code; without the line, so that a deploy keeps it."""
    frames: list[tuple[str, str]] = _FRAME.findall(trace)
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])] or frames
    return f"{'/'.join(own[-1][0].split('/')[-2:])}:{own[-1][1]}" if own else ""


def _given(error: str) -> str:
    try:
        return str(json.loads(error).get("fingerprint", "")) if '"fingerprint"' in error else ""
    except (ValueError, AttributeError):
        return ""


def _parts(error: str) -> tuple[str, str, str]:
    try:
        fields = json.loads(error)
        kind, message, trace = (str(fields.get(name, "")) for name in ("type", "message", "traceback"))
    except (ValueError, AttributeError):
        return "", error, ""
    return kind, message, trace
