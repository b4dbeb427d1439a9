"""The embedded server under real processes and real signals."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from penstock.errors import BadOption, Unavailable, UnsuitableServer
from penstock.server.embedded import paths
from penstock.server.embedded import server as embedded_module
from penstock.server.embedded.binary import find_binary
from penstock.server.embedded.paths import socket_path
from penstock.server.embedded.probe import POINTER
from penstock.server.embedded.server import EmbeddedServer
from tests.server.helpers import (
    User,
    clean,
    end,
    end_everything,
    is_alive,
    server_pid,
    servers,
    until,
    watcher_pid,
    watchers,
)

StartUser = Callable[..., User]
# The promise is 2 s; a loaded machine gets more before the test complains.
SOON = 5.0


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    taken = time.monotonic() - begin
    print(f"took {taken:.3f} s")
    assert taken < seconds


def ping(path: Path) -> bool:
    with redis.Redis(unix_socket_path=str(path)) as client:
        return bool(client.ping())


def write(path: Path, key: str, value: str) -> None:
    with redis.Redis(unix_socket_path=str(path)) as client:
        client.set(key, value)


def read(path: Path, key: str) -> object:
    with redis.Redis(unix_socket_path=str(path)) as client:
        return client.get(key)


def config(path: Path, name: str) -> object:
    with redis.Redis(unix_socket_path=str(path), decode_responses=True) as client:
        return client.config_get(name)[name]


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
    said = [record.getMessage() for record in caplog.records if record.name == "penstock.embedded"]
    assert [str(data) in text for text in said] == [True]


def test_a_pointer_file_tells_people_where_the_socket_is(embedded: EmbeddedServer, data: Path) -> None:
    path = embedded.ensure()
    assert json.loads((data / POINTER).read_text()) == {"socket": str(path), "pid": server_pid(data)}


def test_five_processes_started_at_one_moment_share_one_server(start_user: StartUser, data: Path) -> None:
    users = [start_user() for _ in range(5)]
    assert [user.hear() for user in users] == ["ready"] * 5
    assert len(servers(data)) == 1
    assert sorted(user.ask("incr n") for user in users) == ["1", "2", "3", "4", "5"]
    until(lambda: len(watchers(data)) == 1)


def test_killing_the_first_user_hurts_no_other(start_user: StartUser, data: Path) -> None:
    first = start_user()
    first.hear()
    second = start_user()
    second.hear()
    pid = server_pid(data)
    first.kill()
    with within(SOON):
        assert second.ask("incr n") == "1"
    assert servers(data) == [pid]


def test_killing_the_server_alone_hurts_nobody_for_long(start_user: StartUser, data: Path) -> None:
    users = [start_user() for _ in range(3)]
    assert [user.hear() for user in users] == ["ready"] * 3
    assert [user.ask("incr n") for user in users] == ["1", "2", "3"]
    pid = server_pid(data)
    end(pid)
    with within(SOON):
        for user in users:
            user.send("incr n")
        assert sorted(user.hear() for user in users) == ["4", "5", "6"]
    assert len(servers(data)) == 1
    assert servers(data) != [pid]


def test_killing_everything_loses_nothing_that_was_acknowledged_two_seconds_before(
    start_user: StartUser, embedded: EmbeddedServer, data: Path
) -> None:
    user = start_user()
    user.hear()
    acknowledged: dict[str, float] = {}
    begin = time.monotonic()
    while time.monotonic() < begin + 2.5:
        key = f"k{len(acknowledged)}"
        assert user.ask(f"set {key} v") == "True"
        acknowledged[key] = time.monotonic()
    killed = time.monotonic()
    for pid in (watcher_pid(data), server_pid(data)):
        end(pid)
    user.kill()
    with within(SOON):
        path = embedded.ensure()
    old = [key for key, at in acknowledged.items() if at < killed - 2]
    assert old
    with redis.Redis(unix_socket_path=str(path)) as client:
        assert client.exists(*old) == len(old)


def test_after_everything_was_killed_the_next_user_needs_no_help(
    start_user: StartUser, embedded: EmbeddedServer, data: Path
) -> None:
    user = start_user()
    user.hear()
    assert user.ask("set k v") == "True"
    path = socket_path(data)
    user.process.kill()
    end_everything(data)
    assert path.exists()
    assert {"users.lock", "start.lock", "server.lock", "watcher.lock", POINTER} <= {p.name for p in data.iterdir()}
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
    (data / POINTER).write_text(json.dumps({"socket": str(foreign), "pid": stranger.pid}))
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
def test_a_spoilt_pointer_file_does_not_matter(embedded: EmbeddedServer, data: Path, words: str) -> None:
    data.mkdir()
    (data / POINTER).write_text(words)
    assert ping(embedded.ensure())
    (data / POINTER).write_text(words)
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
    monkeypatch.setattr(embedded_module, "LONGEST_END", 0.2)
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
    # Nobody uses the old one any more, so its own watcher stops it, and then the path may be used anew.
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
    end(old)
    assert read(embedded.ensure(), "k") is None
    assert server_pid(data) != old


def test_data_files_without_their_manifest_are_one_clear_error_and_stay(embedded: EmbeddedServer, data: Path) -> None:
    write(embedded.ensure(), "k", "v")
    end_everything(data)
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
    end_everything(data)
    (manifest,) = (data / "appendonlydir").glob("*.manifest")
    manifest.unlink()  # it is written last
    assert ping(embedded.ensure())


def test_a_server_that_does_not_answer_is_named_and_left_alone(
    embedded: EmbeddedServer, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "DEADLINE", 0.2)
    embedded.ensure()
    pid = server_pid(data)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match=f"process {pid} does not answer"):
        embedded.ensure()
    os.kill(pid, signal.SIGCONT)
    assert ping(embedded.ensure())
    assert server_pid(data) == pid


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


def test_ctrl_c_of_the_program_that_started_the_server_does_not_reach_it(start_user: StartUser, data: Path) -> None:
    first = start_user()
    first.hear()
    second = start_user()
    second.hear()
    pid = server_pid(data)
    os.killpg(first.pid, signal.SIGINT)
    first.close()
    assert first.process.returncode != 0
    assert second.ask("incr n") == "1"
    assert server_pid(data) == pid
    assert os.getsid(pid) not in {first.pid, os.getsid(0)}


@pytest.mark.parametrize("killed", [False, True])
def test_the_server_stops_after_its_last_user_however_that_went(
    start_user: StartUser, data: Path, killed: bool
) -> None:
    user = start_user()
    user.hear()
    assert user.ask("set k v") == "True"
    assert servers(data)
    user.kill() if killed else user.close()
    until(lambda: not servers(data) and not watchers(data))
    assert "bye bye" in (data / "server.log").read_text()


def test_a_user_who_comes_within_the_linger_keeps_the_server(
    data: Path, embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_EMBEDDED_LINGER", "1")
    embedded.ensure()
    pid, watcher = server_pid(data), watcher_pid(data)
    for _ in range(3):
        embedded.release()
        embedded.ensure()
    embedded.release()
    back = time.monotonic() + 0.7
    until(lambda: time.monotonic() > back)
    assert ping(embedded.ensure())
    later = time.monotonic() + 1.0
    until(lambda: time.monotonic() > later)
    assert (server_pid(data), watcher_pid(data)) == (pid, watcher)


def test_users_who_come_and_go_while_the_server_stops_are_never_without_one(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_EMBEDDED_LINGER", "0")
    pids = set()
    for turn in range(30):
        user = EmbeddedServer(data)
        path = user.ensure()
        pids.add(server_pid(data))
        write(path, f"k{turn}", "v")
        assert ping(path)
        user.release()
        if turn % 2:
            until(lambda: not servers(data))
    assert len(pids) >= 15


def test_a_watcher_that_was_killed_is_replaced_by_the_next_user(embedded: EmbeddedServer, data: Path) -> None:
    embedded.ensure()
    end(watcher_pid(data))
    until(lambda: not watchers(data))
    other = EmbeddedServer(data)
    other.ensure()
    assert watcher_pid(data)
    other.release()
    embedded.release()
    until(lambda: not servers(data))


def test_a_forked_child_that_uses_the_server_is_a_user_of_its_own(start_user: StartUser, data: Path) -> None:
    parent = start_user()
    parent.hear()
    assert parent.ask("set k v") == "True"
    child = int(parent.ask("fork forked"))
    try:
        until(lambda: parent.ask("get forked") == "child")
        pid, watcher = server_pid(data), watcher_pid(data)
        parent.kill()
        until(lambda: not is_alive(parent.pid))
        late = time.monotonic() + 1.0
        until(lambda: time.monotonic() > late)
        assert (server_pid(data), watcher_pid(data)) == (pid, watcher)
    finally:
        end(child)
    until(lambda: not servers(data))


def test_a_forked_child_that_does_not_use_the_server_keeps_nothing_alive(start_user: StartUser, data: Path) -> None:
    parent = start_user()
    parent.hear()
    child = int(parent.ask("idle"))
    try:
        assert parent.ask("set k v") == "True"
        parent.kill()
        until(lambda: not servers(data))
        assert is_alive(child)
    finally:
        end(child)


def test_users_with_different_runtime_directories_share_one_server(
    start_user: StartUser, data: Path, tmp_path: Path
) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    users = [start_user(XDG_RUNTIME_DIR=str(runtime)), start_user(XDG_RUNTIME_DIR="")]
    assert [user.hear() for user in users] == ["ready"] * 2
    assert sorted(user.ask("incr n") for user in users) == ["1", "2"]
    end(watcher_pid(data))
    end(server_pid(data))


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


def test_production_is_refused(embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ENV", "production")
    with pytest.raises(UnsuitableServer, match="PENSTOCK_URL"):
        embedded.ensure()


def test_a_network_file_system_is_refused(
    embedded: EmbeddedServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        f"2 1 0:5 / {tmp_path} rw - nfs4 host:/export rw\n"
        "3 1 0:6 / /else\\040where rw - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(paths, "MOUNTS", mounts)
    with pytest.raises(UnsuitableServer, match="network file system"):
        embedded.ensure()
    assert paths.filesystem(Path("/else where/x")) == "tmpfs"
    assert paths.filesystem(Path("/elsewhere")) == "ext4"


def test_a_data_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnsuitableServer, match="embedded:///some/directory"):
        EmbeddedServer(tmp_path / "file" / "data").ensure()


def test_a_binary_that_ends_at_once_is_one_clear_error_with_its_last_words(
    embedded: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER_BIN", str(script(tmp_path, "echo I cannot; exit 1")))
    with pytest.raises(Unavailable, match=r"(?s)ended as soon as it was started.*I cannot"):
        embedded.ensure()


def test_a_binary_that_cannot_be_run_is_one_clear_error(
    embedded: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o700)
    monkeypatch.setenv("PENSTOCK_SERVER_BIN", str(broken))
    with pytest.raises(Unavailable, match="Exec format error"):
        embedded.ensure()


def test_a_binary_that_never_listens_is_given_up(
    embedded: EmbeddedServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "DEADLINE", 0.5)
    monkeypatch.setenv("PENSTOCK_SERVER_BIN", str(script(tmp_path, "echo thinking; exec sleep 600")))
    with pytest.raises(Unavailable, match=r"(?s)not ready in time.*thinking"):
        embedded.ensure()
    end(server_pid(data))


def test_a_bad_linger_is_one_clear_error(embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_EMBEDDED_LINGER", "soon")
    with pytest.raises(BadOption, match="PENSTOCK_EMBEDDED_LINGER"):
        embedded.ensure()


def test_a_damaged_file_is_one_clear_error_whose_advice_works(embedded: EmbeddedServer, data: Path) -> None:
    path = embedded.ensure()
    write(path, "k", "v")
    end_everything(data)
    (log,) = (data / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(log.read_bytes() + b"nonsense\r\n" * 3)
    with pytest.raises(Unavailable, match="damaged") as caught:
        embedded.ensure()
    repair = str(caught.value).split("run: ")[1].splitlines()[0]
    subprocess.run(["bash", "-c", repair], input=b"y\n", check=True, capture_output=True)
    assert read(embedded.ensure(), "k") == b"v"


def test_a_server_that_loads_for_longer_than_the_deadline_is_waited_for(
    embedded: EmbeddedServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = embedded.ensure()
    with redis.Redis(unix_socket_path=str(path)) as client, client.pipeline(transaction=False) as pipe:
        for number in range(10_000):
            pipe.set(f"k{number}", "v")
        pipe.execute()
    end_everything(data)
    monkeypatch.setattr(embedded_module, "DEADLINE", 0.4)
    slow = script(tmp_path, f'exec {find_binary()} "$@" --key-load-delay 100')
    monkeypatch.setenv("PENSTOCK_SERVER_BIN", str(slow))
    begin = time.monotonic()
    path = embedded.ensure()
    assert time.monotonic() - begin > 1
    assert read(path, "k9999") == b"v"


def test_the_log_does_not_grow_for_ever(embedded: EmbeddedServer, data: Path) -> None:
    data.mkdir()
    (data / "server.log").write_bytes(b"x" * (2 << 20))
    embedded.ensure()
    assert (data / "server.log").stat().st_size < 1 << 20


def script(folder: Path, text: str) -> Path:
    path = folder / "server"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path
