"""Which values may stand at a place of a request, for whoever sent another."""

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import inspect

_STEP: Final = re.compile(r"\.(\w+)|\[\d+\]")


def choices(kind: Any, path: str) -> list[str]:
    """The values that this type lists for a path such as `$.lane[0].on_dead`; none if it lists none there."""
    places = list(_plain(inspect.type_info(kind)))
    for step in _STEP.finditer(path):
        places = [inner for place in places for inner in _inside(place, step[1])]
    values = {value for place in places if isinstance(place, inspect.LiteralType) for value in place.values}
    return sorted(str(value) for value in values if value != "")


def _inside(place: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """What is in the field of this name, or without one in an item."""
    if isinstance(place, inspect.ListType) and name is None:
        yield from _plain(place.item_type)
    if isinstance(place, inspect.StructType):
        for field in place.fields:
            if field.encode_name == name:
                yield from _plain(field.type)


def _plain(place: inspect.Type) -> Iterator[inspect.Type]:
    """Each that it may be, without what is only said about it."""
    if isinstance(place, inspect.Metadata):
        yield from _plain(place.type)
    elif isinstance(place, inspect.UnionType):
        for one in place.types:
            yield from _plain(one)
    else:
        yield place
