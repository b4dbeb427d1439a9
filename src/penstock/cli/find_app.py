"""Finding and importing the app of a command."""

import importlib
import operator
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.app import Penstock
from penstock.cli.exit_codes import CliError, Exit
from penstock.model.ownership import user_name
from penstock.model.settings import foreign_project, load, project_folder

_MAX_TRACEBACK_LINES = 8  #: enough for the place and the error


def find_app(spec: str | None, hint: str = "") -> Penstock:
    """The app of `module:attr`, else of the project or the environment; `hint` ends the error if there is none."""
    module, _, attribute = _spec(spec, hint).partition(":")
    return _app(_import(module), attribute)


def _spec(spec: str | None, hint: str) -> str:
    spec = spec or load({}).app
    if not spec:
        text = "no app is named: give module:attr, or set app under [tool.penstock] in pyproject.toml or $PENSTOCK_APP"
        raise _error(text + hint + _ignored())
    return spec


def _ignored() -> str:
    """That a project was ignored, if one was."""
    file = foreign_project(Path.cwd())
    if file is None:
        return ""
    owner = user_name(file.stat().st_uid)
    return f"; {file} was ignored, because others can write it: it belongs to user {owner}, and may name code to import"


def _import(name: str) -> ModuleType:
    if "/" in name or name.endswith(".py"):
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise _error(f"{name!r} is a file: name it as a module, such as {module}:app")
    here, project = Path.cwd(), project_folder(Path.cwd())
    for folder in filter(None, (project, here)):  # the current folder first, then its project's
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise _error(
                f"there is no module {error.name!r}{_parent_note(name, error.name)} in {here}"
                f"{'' if project in (None, here) else f', in {project}'} or where Python looks{_colon_hint(name)}"
            ) from None
        raise _import_error(name, error) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  (an application may fail in any way)
        raise _import_error(name, error) from None


def _colon_hint(name: str) -> str:
    """The last dot may be meant as a colon."""
    module, _, attribute = name.rpartition(".")
    return f"; did you mean {module}:{attribute}?" if module else ""


def _parent_note(name: str, missing: str) -> str:
    return "" if name == missing else f" (of {name!r})"


def _import_error(name: str, error: BaseException) -> CliError:
    summary = traceback.TracebackException.from_exception(error)
    summary.stack = traceback.StackSummary.from_list(frame for frame in summary.stack if _is_user_code(frame))
    lines = "".join(summary.format()).rstrip().splitlines()[-_MAX_TRACEBACK_LINES:]
    return _error(f"{name!r} cannot be imported:\n\n" + "\n".join(lines))


def _is_user_code(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith("<frozen importlib") and frame.filename not in (__file__, importlib.__file__)


def _app(module: ModuleType, attribute: str) -> Penstock:
    apps = {name: value for name, value in vars(module).items() if isinstance(value, Penstock)}
    if not attribute:
        if len(apps) == 1:
            return next(iter(apps.values()))
        raise _error(f"say which app of {module.__name__!r}: module:attr; {_list_of(module, apps)}")
    try:
        app: Any = operator.attrgetter(attribute)(module)
    except AttributeError:
        raise _error(f"{module.__name__!r} has no {attribute!r}; {_list_of(module, apps)}") from None
    if not isinstance(app, Penstock):
        raise _error(
            f"{module.__name__}:{attribute} is a {type(app).__name__}, not a Penstock; {_list_of(module, apps)}"
        )
    return app


def _list_of(module: ModuleType, apps: dict[str, Penstock]) -> str:
    return f"its apps: {', '.join(f'{module.__name__}:{name}' for name in apps)}" if apps else "there is no app in it"


def _error(text: str) -> CliError:
    return CliError(text, Exit.NO_APP)
