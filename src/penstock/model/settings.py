"""Settings: from arguments, else the environment, else `[tool.penstock]` of the nearest pyproject.toml.

`app` alone is taken from the project before the environment: a project knows its app, and a variable may be left over
from another one.
"""

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from penstock.errors import BadOption
from penstock.model.durations import milliseconds
from penstock.model.options import Queues, unknown
from penstock.model.ownership import is_trusted

#: What stands before the last @ of a URL, after the user's name if it has one.
_PASSWORD: Final = re.compile(r"(://(?:[^:@/]*:)?).*@", re.DOTALL)


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """Every setting of an app and its workers; times in ms."""

    app: str | None = None  #: module:attr, for the command line
    url: str | None = None
    deadline: int = 5_000  #: a call ends within it, in an answer or Unavailable
    payload_limit: int = 2**20  #: bytes
    concurrency: int = 100  #: jobs that one worker process runs at once
    queues: tuple[str, ...] = ("*",)
    job_log: str = "INFO"  #: from this level on, what is logged while a job runs is kept with it; OFF: only its log()
    lease: int = 30_000  #: how long a worker inside a program may be silent; it is renewed three times as often

    def __repr__(self) -> str:
        """All settings, but no password."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["url"] = self.url and _PASSWORD.sub(r"\1***@", self.url)
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in values.items())})"


_PREFIX: Final = "PENSTOCK_"
#: Variables with our prefix that are no settings: of the servers, the HTTP service and the tests.
_OTHERS: Final = (
    *("ENV", "SERVER_BIN", "EMBEDDED_LINGER", "ALLOW_EVICTION", "TEST_URL", "KEYS"),
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
    settings: dict[str, Any] = {}
    for source, values in (
        (where, project),
        ("the environment", _environment(names, project)),
        ("Penstock(…)", {name: value for name, value in arguments.items() if value is not None}),
    ):
        for name, value in values.items():
            if name not in names:
                raise BadOption(f"{source}: {unknown('setting', name, names)}")
            settings[name] = _check(name, value, source)
    return Settings(**settings)


def _environment(names: Collection[str], project: Mapping[str, Any]) -> dict[str, str]:
    """The settings from the environment; an unknown variable with our prefix is most likely misspelt."""
    valid = {_variable(name): name for name in names}
    ours = [name for name in os.environ if name.startswith(_PREFIX)]
    for variable in ours:
        rest = variable.removeprefix(_PREFIX)
        if variable not in valid and rest not in _OTHERS and not _OF_A_SERVICE.match(rest):
            known = [*valid, *(f"{_PREFIX}{other}" for other in _OTHERS[:-1])]
            raise BadOption(f"the environment: {unknown('variable', variable, known)}")
    values = {valid[variable]: os.environ[variable] for variable in ours if variable in valid}
    return {name: value for name, value in values.items() if name != "app" or name not in project}


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def project_folder(start: Path) -> Path | None:
    """The folder of the nearest pyproject.toml upward that nobody else can have put there: it may name code."""
    return next((file.parent for file in _project_files(start) if is_trusted(file)), None)


def foreign_project(start: Path) -> Path | None:
    """The first pyproject.toml upward that is ignored because somebody else owns it or may write to it, if any is."""
    return next((file for file in _project_files(start) if not is_trusted(file)), None)


def _project_files(start: Path) -> Iterator[Path]:
    return (file for folder in (start, *start.parents) if (file := folder / "pyproject.toml").is_file())


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
    """A checked concurrency; also used where a worker is created."""
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
    duration = milliseconds(float(value) if isinstance(value, str) and value.replace(".", "", 1).isdigit() else value)
    if duration < 1:
        raise ValueError("use a time above 0")
    return duration


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
