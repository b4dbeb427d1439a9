"""A virtual environment for each system, made once and kept under `benchmarks/.run/`."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.systems import System

ROOT: Final = Path(__file__).parent.parent
RUN: Final = ROOT / "benchmarks" / ".run"
INSTALL_TIMEOUT: Final = 300  #: seconds


class CannotInstall(Exception):
    pass


def folder(system: System) -> Path:
    """Where its programs are; the bare loop shares Penstock's environment, for they need the same."""
    return RUN / "venvs" / ("penstock" if not system.is_peer else system.name) / "bin"


def prepare(system: System, say: Callable[[str], None], *, newest: bool = False) -> Path:
    """Make the environment unless it is there, with the newest versions of its packages."""
    programs = folder(system)
    ready = programs.parent / ".ready"
    wanted = " ".join(system.packages)
    if newest or not ready.is_file() or ready.read_text() != wanted:
        say(f"{system.title}: installing {wanted}")
        _run(sys.executable, "-m", "venv", str(programs.parent))
        _run(str(programs / "python"), "-m", "pip", "install", "--quiet", "--upgrade", *system.packages)
        ready.write_text(wanted)
    if not system.is_peer:
        _run(str(programs / "python"), "-m", "compileall", "-q", str(ROOT / "src"))
    return programs


def compiled(environment: Mapping[str, str]) -> dict[str, str]:
    """With bytecode kept: pip compiles what it installs, but Penstock runs from its source here."""
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(RUN / "bytecode")}


def versions(programs: Path, system: System) -> str:
    """The version of the system's own package."""
    package = "penstock" if not system.is_peer else system.packages[0].partition("[")[0]
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return _run(str(programs / "python"), "-c", code).strip()


def _run(*command: str) -> str:
    try:
        environment = compiled(os.environ)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(str(error)) from error
    if done.returncode:
        raise CannotInstall((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    return done.stdout
