"""Settings: from arguments, else the environment, else `[tool.penstock]` of the nearest pyproject.toml.

`app` alone is taken from the project before the environment: a project knows its app, and a variable may be left over
from another one.
"""

import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from penstock.errors import BadOption
from penstock.model.durations import milliseconds
from penstock.model.options import Queues, unknown


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of an app and its workers; times in ms."""

    app: str | None = None  #: module:attr, for the command line
    url: str | None = None
    deadline: int = 5_000  #: a call ends within it, in an answer or Unavailable
    payload_limit: int = 2**20  #: bytes
    concurrency: int = 100  #: jobs that one worker process runs at once
    queues: tuple[str, ...] = ("*",)
    job_log: str = "INFO"  #: from this level on, what is logged while a job runs is kept with it; OFF: only its log()
    lease: int = 30_000  #: life of a worker inside a program; it is renewed every third of it


_PREFIX: Final = "PENSTOCK_"
#: Variables that are no settings: of the embedded server, of any server, of the HTTP service, and of the tests.
_OTHERS: Final = (
    *("ENV", "SERVER_BIN", "EMBEDDED_LINGER", "ALLOW_EVICTION", "TEST_URL"),
    *("HTTP_TOKENS", "HTTP_USERS", "HTTP_TRUST", "HTTP_PROXIES", "HTTP_ALLOWED_HOSTS", "HTTP_TOKEN_FILE"),
    *("HTTP_SESSION_KEY", "TOKEN"),
    "LONG",
)
#: Kubernetes sets these in every container for a service that is called penstock.
_OF_A_SERVICE = re.compile(r"(SERVICE_(HOST|PORT)|PORT)(_\w+)?\Z")


def load(arguments: Mapping[str, Any], start: Path | None = None) -> Settings:
    """The settings that hold; an unknown or bad one is an error that says where it stands and what is valid."""
    names = {field.name for field in fields(Settings)}
    where, project = _project(start or Path.cwd())
    found: dict[str, Any] = {}
    for source, values in (
        (where, project),
        ("the environment", _environment(names, project)),
        ("Penstock(…)", {name: value for name, value in arguments.items() if value is not None}),
    ):
        for name, value in values.items():
            if name not in names:
                raise BadOption(f"{source}: {unknown('setting', name, names)}")
            found[name] = _check(name, value, source)
    return Settings(**found)


def _environment(names: Collection[str], project: Mapping[str, Any]) -> dict[str, str]:
    """What the environment sets; a variable that is ours by its name but none that we know is most likely misspelt."""
    valid = {_variable(name): name for name in names}
    ours = [name for name in os.environ if name.startswith(_PREFIX)]
    for variable in ours:
        rest = variable.removeprefix(_PREFIX)
        if variable not in valid and rest not in _OTHERS and not _OF_A_SERVICE.match(rest):
            known = [*valid, *(f"{_PREFIX}{other}" for other in _OTHERS[:-1])]
            raise BadOption(f"the environment: {unknown('variable', variable, known)}")
    found = {valid[variable]: os.environ[variable] for variable in ours if variable in valid}
    return {name: value for name, value in found.items() if name != "app" or name not in project}


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def project_folder(start: Path) -> Path | None:
    """That of the nearest pyproject.toml upward."""
    return next((folder for folder in (start, *start.parents) if (folder / "pyproject.toml").is_file()), None)


def _project(start: Path) -> tuple[str, dict[str, Any]]:
    """The table of the nearest pyproject.toml upward, as (where it stands, values)."""
    folder = project_folder(start)
    if folder is None:
        return "pyproject.toml", {}
    file = folder / "pyproject.toml"
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadOption(f"{file}: {error}") from None
    tool = document.get("tool", {})
    table = tool.get("penstock", {}) if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise BadOption(f"{file}: [tool.penstock] must be a table")
    return f"[tool.penstock] of {file}", {name.replace("-", "_"): value for name, value in table.items()}


def concurrency(value: Any) -> int:
    """Checked where a worker is made, too."""
    checked: int = _check("concurrency", value, "worker")
    return checked


def _check(name: str, value: Any, source: str) -> Any:
    try:
        return _CHECKS[name](value)
    except (BadOption, ValueError, TypeError) as error:
        raise BadOption(f"{source}: {name}={value!r}: {error}") from None


def _number(value: Any) -> int:
    if isinstance(value, bool | float) or not str(value).isdigit() or int(value) < 1:
        raise ValueError("use a whole number above 0")
    return int(value)


def _duration(value: Any) -> int:
    found = milliseconds(float(value) if isinstance(value, str) and value.replace(".", "", 1).isdigit() else value)
    if found < 1:
        raise ValueError("use a time above 0")
    return found


def _queues(value: Any) -> tuple[str, ...]:
    names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
    Queues(names)
    return names


def _level(value: Any) -> str:
    if str(value).upper() not in _LEVELS:
        raise ValueError(f"use one of {', '.join(_LEVELS)}")
    return str(value).upper()


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF")
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "app": str,
    "url": str,
    "deadline": _duration,
    "payload_limit": _number,
    "concurrency": _number,
    "queues": _queues,
    "lease": _duration,
    "job_log": _level,
}
