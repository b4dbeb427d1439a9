"""Where no embedded server can be started: one clear error with what to do."""

import subprocess
import time
from pathlib import Path

import pytest
import redis

from penstock.errors import BadOption, Unavailable, UnsuitableServer
from penstock.server.embedded import paths
from penstock.server.embedded import server as embedded_module
from penstock.server.embedded.binary import find_binary
from penstock.server.embedded.server import EmbeddedServer
from tests.server.embedded.helpers import kill, kill_all, read, script, server_pid, write


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
    monkeypatch.setattr(paths, "MOUNTS_FILE", mounts)
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
    monkeypatch.setattr(embedded_module, "PROGRESS_TIMEOUT", 0.5)
    monkeypatch.setenv("PENSTOCK_SERVER_BIN", str(script(tmp_path, "echo thinking; exec sleep 600")))
    with pytest.raises(Unavailable, match=r"(?s)not ready in time.*thinking"):
        embedded.ensure()
    kill(server_pid(data))


def test_a_bad_linger_is_one_clear_error(embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_EMBEDDED_LINGER", "soon")
    with pytest.raises(BadOption, match="PENSTOCK_EMBEDDED_LINGER"):
        embedded.ensure()


def test_a_damaged_file_is_one_clear_error_whose_advice_works(embedded: EmbeddedServer, data: Path) -> None:
    path = embedded.ensure()
    write(path, "k", "v")
    kill_all(data)
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
    kill_all(data)
    monkeypatch.setattr(embedded_module, "PROGRESS_TIMEOUT", 0.4)
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
