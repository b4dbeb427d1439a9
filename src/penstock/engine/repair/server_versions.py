"""Which versions of Redis and Valkey have holes that are known, and closed in later ones.

The tables are what was published up to September 2026. A line that is not in them is newer, or somebody's own.
"""

import re
from typing import Final

Line = tuple[int, int]

KNOWN_UNTIL: Final = "September 2026"
#: The last release with security fixes of each line, as far as is known.
LEAST_SAFE: Final[dict[str, dict[Line, int]]] = {
    "Redis": {(7, 2): 16, (7, 4): 11, (8, 2): 10, (8, 4): 6, (8, 6): 7, (8, 8): 3, (8, 10): 2},
    "Valkey": {(7, 2): 14, (8, 0): 10, (8, 1): 9, (9, 0): 5, (9, 1): 1},
}
#: Lines that get no fixes any more, though Penstock runs on them.
ENDED: Final[dict[str, tuple[Line, ...]]] = {"Redis": ((7, 0), (8, 0)), "Valkey": ()}
#: A user who may run scripts, as every program with Penstock may, can run any code in the server, or act as others.
LUA_HOLES: Final = "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818 and CVE-2025-46819"
#: The first release of each line without these; those that are not named never had them.
WITHOUT_LUA_HOLES: Final[dict[str, dict[Line, int]]] = {
    "Redis": {(7, 0): 999, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}


def weakness(name: str, version: str) -> tuple[str, str] | None:
    """What is known against a version, and what to do; None if nothing is."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None or name not in LEAST_SAFE:
        return None
    line, patch = (int(match[1]), int(match[2])), int(match[3])
    text = _holes(name, line, patch)
    if text is None:
        return None
    least = LEAST_SAFE[name].get(line)
    newer = f"{line[0]}.{line[1]}.{least}" if least else _lines(name)
    return text, f"run {name} {newer} or later, unless whoever packaged this one has put the fixes into it"


def _holes(name: str, line: Line, patch: int) -> str | None:
    if patch < WITHOUT_LUA_HOLES[name].get(line, 0):
        return f"has the holes {LUA_HOLES}: who may run scripts there may run any code in the server"
    if line in ENDED[name]:
        return f"is of a line, {line[0]}.{line[1]}, that gets no security fixes any more"
    if patch < LEAST_SAFE[name].get(line, 0):
        return f"has holes that a later release closes (known until {KNOWN_UNTIL})"
    return None


def _lines(name: str) -> str:
    """The safe releases of all lines."""
    return ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in LEAST_SAFE[name].items())
