"""An embedded server that was killed, stopped, or lost its socket or its directory."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from penstock.errors import Unavailable
from penstock.server.embedded import server as embedded_module
from penstock.server.embedded.paths import POINTER_FILE, socket_path
from penstock.server.embedded.server import EmbeddedServer
from tests.server.embedded.helpers import (
    SOON,
    StartUser,
    kill,
    kill_all,
    ping,
    read,
    server_pid,
    servers,
    watcher_pid,
    within,
    write,
)
from tests.server.helpers import is_alive, until


def test_other_users_go_on_after_the_first_one_was_killed(start_user: StartUser, data: Path) -> None:
    first = start_user()
    first.read()
    second = start_user()
    second.read()
    pid = server_pid(data)
    first.kill()
    with within(SOON):
        assert second.ask("incr n") == "1"
    assert servers(data) == [pid]


def test_users_recover_soon_after_the_server_alone_was_killed(start_user: StartUser, data: Path) -> None:
    users = [start_user() for _ in range(3)]
    assert [user.read() for user in users] == ["ready"] * 3
    assert [user.ask("incr n") for user in users] == ["1", "2", "3"]
    pid = server_pid(data)
    kill(pid)
    with within(SOON):
        for user in users:
            user.send("incr n")
        assert sorted(user.read() for user in users) == ["4", "5", "6"]
    assert len(servers(data)) == 1
    assert servers(data) != [pid]


def test_killing_everything_loses_nothing_that_was_acknowledged_two_seconds_before(
    start_user: StartUser, embedded: EmbeddedServer, data: Path
) -> None:
    user = start_user()
    user.read()
    acknowledged: dict[str, float] = {}
    begin = time.monotonic()
    while time.monotonic() < begin + 2.5:
        key = f"k{len(acknowledged)}"
        assert user.ask(f"set {key} v") == "True"
        acknowledged[key] = time.monotonic()
    killed = time.monotonic()
    for pid in (watcher_pid(data), server_pid(data)):
        kill(pid)
    user.kill()
    with within(SOON):
        path = embedded.ensure()
    old = [key for key, at in acknowledged.items() if at < killed - 2]
    assert old
    with redis.Redis(unix_socket_path=str(path)) as client:
        assert client.exists(*old) == len(old)


def test_the_next_user_needs_no_help_after_everything_was_killed(
    start_user: StartUser, embedded: EmbeddedServer, data: Path
) -> None:
    user = start_user()
    user.read()
    assert user.ask("set k v") == "True"
    path = socket_path(data)
    user.process.kill()
    kill_all(data)
    assert path.exists()
    assert {"users.lock", "start.lock", "server.lock", "watcher.lock", POINTER_FILE} <= {p.name for p in data.iterdir()}
    with within(SOON):
        assert read(embedded.ensure(), "k") == b"v"
    assert watcher_pid(data)


def test_a_pointer_to_a_foreign_process_is_not_believed_and_does_it_no_harm(
    embedded: EmbeddedServer, data: Path, tmp_path: Path
) -> None:
    data.mkdir()
    foreign = tmp_path / "f.sock"
    listen = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); "
    )
    stranger = subprocess.Popen(
        [sys.executable, "-c", listen + "sys.stdin.read()", str(foreign)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert stranger.stdout is not None
    stranger.stdout.readline()
    (data / POINTER_FILE).write_text(json.dumps({"socket": str(foreign), "pid": stranger.pid}))
    (data / "server.lock").write_text(str(stranger.pid))
    try:
        path = embedded.ensure()
        assert path != foreign
        assert ping(path)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


@pytest.mark.parametrize("words", ["", "nonsense", "[]", '{"socket": 7}', '{"socket": "\\u0000"}'])
def test_a_damaged_pointer_file_does_not_matter(embedded: EmbeddedServer, data: Path, words: str) -> None:
    data.mkdir()
    (data / POINTER_FILE).write_text(words)
    assert ping(embedded.ensure())
    (data / POINTER_FILE).write_text(words)
    assert ping(embedded.ensure())


def test_a_socket_file_that_nobody_listens_on_is_replaced(embedded: EmbeddedServer, data: Path) -> None:
    data.mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(socket_path(data)))
    assert ping(embedded.ensure())


def test_a_server_whose_socket_was_cleaned_away_is_ended_and_replaced(embedded: EmbeddedServer, data: Path) -> None:
    path = embedded.ensure()
    write(path, "k", "v")
    old = server_pid(data)
    path.unlink()
    with within(SOON):
        path = embedded.ensure()
    assert read(path, "k") == b"v"
    assert not is_alive(old)
    assert len(servers(data)) == 1


def test_a_stopped_server_without_its_socket_is_replaced_as_well(
    embedded: EmbeddedServer, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "END_TIMEOUT", 0.2)
    path = embedded.ensure()
    old = server_pid(data)
    os.kill(old, signal.SIGSTOP)
    path.unlink()
    assert ping(embedded.ensure())
    assert not is_alive(old)


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_server_whose_directory_is_gone_keeps_its_users_and_gets_no_other_beside_it(
    embedded: EmbeddedServer, data: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(embedded.ensure(), "k", "v")
    old = server_pid(data)
    data.rename(data.with_name("moved")) if how == "moved" else shutil.rmtree(data)
    if how == "replaced":
        data.mkdir(mode=0o700)
    other = EmbeddedServer(data)
    with pytest.raises(Unavailable, match=rf"(?s){data} was removed, moved or replaced.*process {old}.*begins empty"):
        other.ensure()
    assert not servers(data)
    assert read(embedded.ensure(), "k") == b"v"
    assert f"process {old}" in caplog.text
    # Nobody uses the old server any more, so its own watcher stops it, and then the path may be used again.
    embedded.release()
    until(lambda: not is_alive(old))
    assert read(other.ensure(), "k") is None
    assert servers(data) == [server_pid(data)]
    other.release()


def test_a_directory_that_was_moved_away_is_served_where_it_is_now(embedded: EmbeddedServer, data: Path) -> None:
    write(embedded.ensure(), "k", "v")
    moved = data.with_name("moved")
    data.rename(moved)
    other = EmbeddedServer(moved)
    assert read(other.ensure(), "k") == b"v"
    moved.rename(data)
    assert read(embedded.ensure(), "k") == b"v"
    other.release()


def test_a_server_that_was_killed_without_its_directory_is_replaced(embedded: EmbeddedServer, data: Path) -> None:
    write(embedded.ensure(), "k", "v")
    old = server_pid(data)
    shutil.rmtree(data)
    kill(old)
    assert read(embedded.ensure(), "k") is None
    assert server_pid(data) != old


def test_data_files_without_their_manifest_are_one_clear_error_and_stay(embedded: EmbeddedServer, data: Path) -> None:
    write(embedded.ensure(), "k", "v")
    kill_all(data)
    folder = data / "appendonlydir"
    (manifest,) = folder.glob("*.manifest")
    manifest.rename(data / "manifest")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(Unavailable, match=rf"(?s){folder} has data files.*manifest.*move {folder} away"):
        embedded.ensure()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    (data / "manifest").rename(manifest)
    assert read(embedded.ensure(), "k") == b"v"


def test_a_server_that_was_killed_during_its_first_start_leaves_nothing_that_stops_the_next(
    embedded: EmbeddedServer, data: Path
) -> None:
    embedded.ensure()
    kill_all(data)
    (manifest,) = (data / "appendonlydir").glob("*.manifest")
    manifest.unlink()  # it is written last
    assert ping(embedded.ensure())


def test_a_server_that_does_not_answer_is_named_and_left_alone(
    embedded: EmbeddedServer, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "PROGRESS_TIMEOUT", 0.2)
    embedded.ensure()
    pid = server_pid(data)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match=f"process {pid} does not answer"):
        embedded.ensure()
    os.kill(pid, signal.SIGCONT)
    assert ping(embedded.ensure())
    assert server_pid(data) == pid
