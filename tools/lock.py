"""What a release is built with, each file by its hash: `make lock` writes requirements-release.txt.

pip then takes these very files or none, wherever it finds them: whoever replaces one on the way is noticed.
"""

import hashlib
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
FILE = ROOT / "requirements-release.txt"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "macosx_11_0_arm64")
#: older names of the same platforms, of which a wheel may have any
OLDER = {
    "manylinux_2_28_x86_64": ("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_26_x86_64"),
    "manylinux_2_28_aarch64": ("manylinux_2_17_aarch64", "manylinux2014_aarch64", "manylinux_2_26_aarch64"),
    "macosx_11_0_arm64": ("macosx_10_9_universal2", "macosx_11_0_universal2"),
}
HEAD = """\
# What a release is built with: `make dist` and `make sbom` install these files and no others. Made by `make lock`.
"""


def main() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["release"]
    with tempfile.TemporaryDirectory() as folder:
        wheels = sorted(_download(Path(folder, "here"), tools, "--constraint", str(ROOT / "constraints.txt")))
        lines = [line for wheel in wheels for line in _entry(wheel, Path(folder))]
    FILE.write_text(HEAD + "\n".join(lines) + "\n")


def _download(folder: Path, names: Iterable[str], *options: str) -> Iterator[Path]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *options, *names]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield from folder.glob("*.whl")


def _entry(wheel: Path, folder: Path) -> Iterator[str]:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    pin = f"{canonicalize_name(name)}=={version}"
    hashes = sorted({_hash(file) for file in (wheel, *_others(wheel, pin, folder))})
    yield f"{pin} \\"
    for number, digest in enumerate(hashes, 1):
        yield f"    --hash=sha256:{digest}" + (" \\" if number < len(hashes) else "")


def _others(wheel: Path, pin: str, folder: Path) -> Iterator[Path]:
    """The same version for other platforms, if it is compiled."""
    if wheel.name.endswith("-none-any.whl"):
        return
    for python, platform in product(PYTHONS, PLATFORMS):
        platforms = [word for name in (platform, *OLDER[platform]) for word in ("--platform", name)]
        options = ("--no-deps", "--only-binary=:all:", "--python-version", python, *platforms)
        yield from _download(folder / f"{wheel.stem}-{python}-{platform}", (pin,), *options)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
