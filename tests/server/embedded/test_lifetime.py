"""How long an embedded server lives: as long as one of its users, and a while longer."""

import os
import signal
import time
from pathlib import Path

import pytest

from penstock.server.embedded.server import EmbeddedServer
from tests.server.embedded.helpers import StartUser, kill, ping, server_pid, servers, watcher_pid, watchers, write
from tests.server.helpers import is_alive, until


def test_ctrl_c_of_the_program_that_started_the_server_does_not_reach_it(start_user: StartUser, data: Path) -> None:
    first = start_user()
    first.read()
    second = start_user()
    second.read()
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
    user.read()
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
    kill(watcher_pid(data))
    until(lambda: not watchers(data))
    other = EmbeddedServer(data)
    other.ensure()
    assert watcher_pid(data)
    other.release()
    embedded.release()
    until(lambda: not servers(data))


def test_a_forked_child_that_uses_the_server_is_a_user_of_its_own(start_user: StartUser, data: Path) -> None:
    parent = start_user()
    parent.read()
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
        kill(child)
    until(lambda: not servers(data))


def test_a_forked_child_that_does_not_use_the_server_keeps_nothing_alive(start_user: StartUser, data: Path) -> None:
    parent = start_user()
    parent.read()
    child = int(parent.ask("idle"))
    try:
        assert parent.ask("set k v") == "True"
        parent.kill()
        until(lambda: not servers(data))
        assert is_alive(child)
    finally:
        kill(child)
