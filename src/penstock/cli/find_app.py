"""Finding the app that a command is about."""

import importlib
import operator
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.app import Penstock
from penstock.cli.exit_codes import Exit, Failure
from penstock.model.settings import load, project_folder

_LINES = 8  #: of a traceback: the place and what went wrong


def find_app(spec: str | None, instead: str = "") -> Penstock:
    """The app that `module:attr` names, or that the project or the environment does; `instead` is another way out."""
    module, _, attribute = _spec(spec, instead).partition(":")
    return _app(_import(module), attribute)


def _spec(given: str | None, instead: str) -> str:
    found = given or load({}).app
    if not found:
        raise _failure(
            "no app is named: give module:attr, or set app under [tool.penstock] in pyproject.toml or $PENSTOCK_APP"
            + instead
        )
    return found


def _import(name: str) -> ModuleType:
    if "/" in name or name.endswith(".py"):
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise _failure(f"{name!r} is a file: name it as a module, such as {module}:app")
    here, project = Path.cwd(), project_folder(Path.cwd())
    for folder in filter(None, (project, here)):  # this one first, then that of the project it is a part of
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise _failure(
                f"there is no module {error.name!r}{_within(name, error.name)} in {here}"
                f"{'' if project in (None, here) else f', in {project}'} or where Python looks{_colon(name)}"
            ) from None
        raise _broken(name, error) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  (an application may fail in any way)
        raise _broken(name, error) from None


def _colon(name: str) -> str:
    """The dot may be meant as the colon."""
    module, _, attribute = name.rpartition(".")
    return f"; did you mean {module}:{attribute}?" if module else ""


def _within(name: str, missing: str) -> str:
    return "" if name == missing else f" (of {name!r})"


def _broken(name: str, error: BaseException) -> Failure:
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(frame for frame in told.stack if _is_theirs(frame))
    lines = "".join(told.format()).rstrip().splitlines()[-_LINES:]
    return _failure(f"{name!r} cannot be imported:\n\n" + "\n".join(lines))


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith("<frozen importlib") and frame.filename not in (__file__, importlib.__file__)


def _app(module: ModuleType, attribute: str) -> Penstock:
    apps = {name: value for name, value in vars(module).items() if isinstance(value, Penstock)}
    if not attribute:
        if len(apps) == 1:
            return next(iter(apps.values()))
        raise _failure(f"say which app of {module.__name__!r}: module:attr; {_named(module, apps)}")
    try:
        found: Any = operator.attrgetter(attribute)(module)
    except AttributeError:
        raise _failure(f"{module.__name__!r} has no {attribute!r}; {_named(module, apps)}") from None
    if not isinstance(found, Penstock):
        raise _failure(
            f"{module.__name__}:{attribute} is a {type(found).__name__}, not a Penstock; {_named(module, apps)}"
        )
    return found


def _named(module: ModuleType, apps: dict[str, Penstock]) -> str:
    return f"its apps: {', '.join(f'{module.__name__}:{name}' for name in apps)}" if apps else "there is no app in it"


def _failure(text: str) -> Failure:
    return Failure(text, Exit.NO_APP)
