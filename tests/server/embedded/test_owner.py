"""What another user of the machine has prepared is not used: directories, links, sockets, projects."""

import fcntl
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.root import main
from penstock.errors import UnsuitableServer
from penstock.model.settings import load
from penstock.server.embedded import daemon
from penstock.server.embedded.paths import POINTER_FILE
from penstock.server.embedded.probe import is_ready, write_pointer
from penstock.server.embedded.server import EmbeddedServer
from penstock.server.urls import parse
from tests.server.embedded.helpers import ping

OTHER_USER = 23_456  #: nobody has this number

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


class OtherUser:
    """A process of another user, which has done something and lives until `end`, at most as long as this process."""

    def __init__(self, act: Callable[[], object]) -> None:
        (answers, answering), (ended, self._alive) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._alive)
            os.write(answering, _problem_of(act).encode())
            os.close(answering)
            os.read(ended, 1)
            os._exit(0)
        os.close(answering)
        os.close(ended)
        self.problem = os.read(answers, 4096).decode()
        os.close(answers)

    def end(self) -> None:
        os.close(self._alive)
        os.waitpid(self.pid, 0)


def _problem_of(act: Callable[[], object]) -> str:
    try:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
        os.umask(0)
        act()
    except BaseException as error:  # noqa: BLE001  (the test fails with it)
        return repr(error)
    return ""


@pytest.fixture
def other_user() -> Iterator[Callable[[Callable[[], object]], OtherUser]]:
    started: list[OtherUser] = []

    def start(act: Callable[[], object]) -> OtherUser:
        started.append(OtherUser(act))
        assert not started[-1].problem
        return started[-1]

    yield start
    for user in started:
        user.end()


ActAsOther = Callable[[Callable[[], object]], OtherUser]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory in which everybody may make files, like /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def serve_as_trap(data: Path) -> None:
    """All that a server has: its locks, a socket that answers, and the pointer to it."""
    data.mkdir(0o777, exist_ok=True)
    for name in (daemon.SERVER, daemon.WATCHER):
        fcntl.lockf(os.open(data / name, os.O_RDWR | os.O_CREAT, 0o666), fcntl.LOCK_EX)
    for name in (daemon.USERS, daemon.START):
        os.open(data / name, os.O_RDWR | os.O_CREAT, 0o666)
    write_pointer(data, data / "trap.sock", os.getpid())
    listen(data / "trap.sock")


def listen(path: Path) -> socket.socket:
    """Answer at a socket as a server does."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"$9\r\nloading:0\r\n")

    threading.Thread(target=answer, daemon=True).start()
    return listener


@as_root
def test_a_directory_that_another_user_prepared_with_a_server_in_it_is_refused(
    shared: Path, other_user: ActAsOther
) -> None:
    data = shared / ".penstock"
    other_user(lambda: serve_as_trap(data))
    with pytest.raises(UnsuitableServer, match=rf"{data} belongs to user number {OTHER_USER}.*embedded:///"):
        EmbeddedServer(data).ensure()


@as_root
def test_a_link_of_another_user_to_a_directory_of_ours_is_refused(
    shared: Path, tmp_path: Path, other_user: ActAsOther, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "home"
    target.mkdir(0o700)
    link = shared / ".penstock"
    other_user(lambda: link.symlink_to(target))
    monkeypatch.chdir(shared)
    with pytest.raises(UnsuitableServer, match=f"{link} belongs to user"):
        EmbeddedServer(parse("embedded://").path).ensure()
    assert list(target.iterdir()) == []


@as_root
def test_root_is_told_to_run_as_the_user_whose_server_it_is(shared: Path) -> None:
    data = shared / "data"
    data.mkdir(0o700)
    os.chown(data, OTHER_USER, OTHER_USER)
    with pytest.raises(UnsuitableServer, match=f"Run it as number {OTHER_USER}"):
        EmbeddedServer(data).ensure()


@as_root
def test_a_socket_of_another_user_is_not_the_server_whatever_its_process_is(
    shared: Path, other_user: ActAsOther
) -> None:
    theirs, ours = shared / "theirs", shared / "ours"
    other = other_user(lambda: listen(theirs))
    assert not is_ready(theirs, other.pid)
    with listen(ours) as listener:
        assert is_ready(ours, os.getpid())
        listener.shutdown(socket.SHUT_RDWR)


def test_a_directory_that_others_may_write_to_is_refused_and_the_advice_helps(data: Path) -> None:
    data.mkdir()
    data.chmod(0o775)
    embedded = EmbeddedServer(data)
    with pytest.raises(UnsuitableServer, match=f"mode 0775.*chmod -R go-w {data}"):
        embedded.ensure()
    data.chmod(0o755)
    assert ping(embedded.ensure())
    embedded.release()


@pytest.mark.parametrize(
    "name", [daemon.LOG, daemon.USERS, daemon.SERVER, POINTER_FILE, "appendonlydir/appendonly.aof.1"]
)
def test_a_file_that_others_may_write_to_is_refused(data: Path, name: str) -> None:
    file = data / name
    file.parent.mkdir(parents=True)
    file.touch()
    file.chmod(0o666)
    with pytest.raises(UnsuitableServer, match=f"{file} .*0666"):
        EmbeddedServer(data).ensure()


@pytest.mark.parametrize("name", [daemon.LOG, daemon.START, POINTER_FILE])
def test_a_link_in_place_of_a_file_is_refused_and_not_followed(data: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    data.mkdir()
    (data / name).symlink_to(target)
    with pytest.raises(UnsuitableServer, match=f"{data / name} is a symbolic link"):
        EmbeddedServer(data).ensure()
    with pytest.raises(OSError, match="symbolic links"):
        daemon.open_own(data / name, os.O_WRONLY | os.O_APPEND)
    assert target.read_text() == "mine"


def test_what_is_made_in_the_directory_is_for_its_owner_only_whatever_the_umask_is(data: Path) -> None:
    before = os.umask(0)
    try:
        embedded = EmbeddedServer(data)
        embedded.ensure()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in data.rglob("*")}
    assert {name for name, mode in modes.items() if mode & 0o077} == set()
    embedded.release()


@as_root
def test_a_project_of_another_user_is_ignored(
    shared: Path, other_user: ActAsOther, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_user(
        lambda: (shared / "pyproject.toml").write_text('[tool.penstock]\napp = "trap:app"\nurl = "redis://trap"')
    )
    here = shared / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert load({}).app is None
    assert load({}).url is None
    assert parse("embedded://").path == here / ".penstock"
    shown = CliRunner().invoke(main, ["workers"])
    assert shown.exit_code == 4
    assert f"{shared}/pyproject.toml was ignored" in shown.stderr
    (here / "pyproject.toml").write_text('[tool.penstock]\napp = "shop:app"')
    assert load({}).app == "shop:app"


def test_a_project_that_everybody_may_write_to_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.penstock]\napp = "shop:app"')
    monkeypatch.chdir(tmp_path)
    assert load({}).app == "shop:app"
    file.chmod(0o666)
    assert load({}).app is None


@as_root
def test_a_link_of_another_user_to_a_project_of_ours_is_ignored(
    shared: Path, tmp_path: Path, other_user: ActAsOther, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the project names would be imported from the directory of the link."""
    (tmp_path / "pyproject.toml").write_text('[tool.penstock]\napp = "shop:app"')
    other_user(lambda: (shared / "pyproject.toml").symlink_to(tmp_path / "pyproject.toml"))
    monkeypatch.chdir(shared)
    assert load({}).app is None
