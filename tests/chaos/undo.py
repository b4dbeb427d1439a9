"""A copy of the code without one of its mends: a run of it shows whether the defect would be found."""

import os
import shutil
import subprocess
from pathlib import Path

import penstock

PATCHES = Path(__file__).parent / "undone"
NAMES = sorted(patch.stem for patch in PATCHES.glob("*.patch"))


def undo(name: str, folder: Path) -> Path:
    """The folder of the copy, which is to be the first of the path of modules."""
    source = folder / "undone" / "src"
    shutil.copytree(Path(penstock.__file__).parent, source / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        ["git", "apply", str(PATCHES / f"{name}.patch")],
        cwd=source.parent,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(folder)},  # else git looks for a repository around it
        check=True,
    )
    return source
