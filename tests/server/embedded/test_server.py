"""The embedded server: started by its first user, shared by all, where only its owner can reach it."""

import json
import os
import sys
from pathlib import Path

import pytest

from penstock.server.embedded.paths import POINTER_FILE, socket_path
from penstock.server.embedded.server import EmbeddedServer
from tests.server.embedded.helpers import (
    StartUser,
    clean,
    config,
    kill,
    ping,
    server_pid,
    servers,
    watcher_pid,
    watchers,
    write,
)
from tests.server.helpers import until


def test_the_first_use_starts_a_server_and_the_next_finds_it(embedded: EmbeddedServer, data: Path) -> None:
    path = embedded.ensure()
    assert ping(path)
    pid = server_pid(data)
    assert embedded.ensure() == path
    assert servers(data) == [pid]


def test_the_server_keeps_everything_on_disk_and_listens_to_its_owner_only(
    embedded: EmbeddedServer, data: Path
) -> None:
    path = embedded.ensure()
    settings = {name: config(path, name) for name in ("appendonly", "appendfsync", "save", "maxmemory-policy", "port")}
    assert settings == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "port": "0",
    }
    assert path.stat().st_mode & 0o777 == 0o700
    assert data.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o077 == 0 for file in (data / "appendonlydir").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="shows what it was started with under /proc")
def test_the_server_runs_with_memory_at_hand(embedded: EmbeddedServer, data: Path) -> None:
    embedded.ensure()
    started_with = Path(f"/proc/{server_pid(data)}/environ").read_bytes().split(b"\0")
    assert b"GLIBC_TUNABLES=glibc.malloc.tcache_count=4000" in started_with


def test_one_line_says_that_it_is_embedded_and_where(
    embedded: EmbeddedServer, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    embedded.ensure()
    embedded.ensure()
    messages = [record.getMessage() for record in caplog.records if record.name == "penstock.embedded"]
    assert [str(data) in message for message in messages] == [True]


def test_a_pointer_file_tells_people_where_the_socket_is(embedded: EmbeddedServer, data: Path) -> None:
    path = embedded.ensure()
    assert json.loads((data / POINTER_FILE).read_text()) == {"socket": str(path), "pid": server_pid(data)}


def test_five_processes_started_at_one_moment_share_one_server(start_user: StartUser, data: Path) -> None:
    users = [start_user() for _ in range(5)]
    assert [user.read() for user in users] == ["ready"] * 5
    assert len(servers(data)) == 1
    assert sorted(user.ask("incr n") for user in users) == ["1", "2", "3", "4", "5"]
    until(lambda: len(watchers(data)) == 1)


def test_a_path_of_two_hundred_characters_works(tmp_path: Path) -> None:
    data = tmp_path / ("x" * (200 - len(str(tmp_path)) - 3)) / "y"
    data = data.with_name("y" * (200 - len(str(data)) + 1))
    assert len(str(data)) >= 200
    embedded = EmbeddedServer(data)
    try:
        assert ping(embedded.ensure())
    finally:
        embedded.release()
        clean(data)


def test_a_path_with_spaces_quotes_and_umlauts_works(tmp_path: Path) -> None:
    data = tmp_path / "Mein \"Ordner\" 'ä' \\ %20 #"
    embedded = EmbeddedServer(data)
    try:
        write(embedded.ensure(), "k", "v")
        assert (data / "appendonlydir").is_dir()
    finally:
        embedded.release()
        clean(data)


def test_users_with_different_runtime_directories_share_one_server(
    start_user: StartUser, data: Path, tmp_path: Path
) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    users = [start_user(XDG_RUNTIME_DIR=str(runtime)), start_user(XDG_RUNTIME_DIR="")]
    assert [user.read() for user in users] == ["ready"] * 2
    assert sorted(user.ask("incr n") for user in users) == ["1", "2"]
    kill(watcher_pid(data))
    kill(server_pid(data))


def test_the_socket_goes_into_the_runtime_directory_only_if_that_is_private(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert socket_path(data).parent == runtime / "penstock"
    runtime.chmod(0o755)
    assert socket_path(data).parent != runtime / "penstock"


def test_the_socket_does_not_go_where_others_could_put_theirs(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = tmp_path / f"penstock-{os.getuid()}"
    assert socket_path(data).parent == folder
    folder.chmod(0o777)
    assert socket_path(data).parent != folder
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert socket_path(data).parent != folder
