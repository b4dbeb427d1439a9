"""Hiding arguments from everybody who looks at a job: those that `redact` names, and names that sound like secrets."""

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

HIDDEN: Final = "[redacted]"
MIN_LENGTH: Final = 3  #: characters of a value that is hidden in texts; shorter ones are everywhere
_SECRET: Final = re.compile(r"passw|secret|token|authorization|api_?key|credential", re.IGNORECASE)


def redacted(value: Any, names: Collection[str]) -> Any:
    """Plain data without the values of these names, at any depth."""
    if isinstance(value, dict):
        return {key: HIDDEN if _is_hidden(key, names) else redacted(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [redacted(item, names) for item in value]
    return value


def without_secrets(make_values: Callable[[], Any], names: Collection[str]) -> Callable[[str], str]:
    """A function that hides the values of these names in any text; they are looked up with the first text."""
    pattern: re.Pattern[str] | None = None

    def hide(text: str) -> str:
        nonlocal pattern
        if pattern is None:
            pattern = _pattern_of(make_values, names)
        return text if pattern is _NOTHING else pattern.sub(HIDDEN, text)

    return hide


_NOTHING: Final = re.compile(r"(?!)")


def _pattern_of(make_values: Callable[[], Any], names: Collection[str]) -> re.Pattern[str]:
    try:
        spellings = {text for secret in _secrets(make_values(), names) for text in _spellings(secret)}
    except Exception:  # noqa: BLE001  (an error that is being described must not be lost for another)
        return _NOTHING
    # The longest first: one may be a part of another.
    found = sorted((text for text in spellings if len(text) >= MIN_LENGTH), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, found))) if found else _NOTHING


def _is_hidden(name: Any, names: Collection[str]) -> bool:
    return "*" in names or str(name) in names or _SECRET.search(str(name)) is not None


def _secrets(value: Any, names: Collection[str]) -> Iterator[Any]:
    """The values that are hidden by their name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item) if _is_hidden(key, names) else _secrets(item, names)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, names)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield value


def _spellings(secret: Any) -> Iterator[str]:
    """How a value may stand in a text: as it is, and as Python or JSON write it."""
    text = str(secret)
    yield text
    yield repr(secret).removeprefix("b")[1:-1] if isinstance(secret, str | bytes) else repr(secret)
    yield json.dumps(text)[1:-1]
