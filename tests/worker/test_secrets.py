"""A password that a worker was started with is nowhere for others to read."""

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from penstock import Penstock
from penstock.cli.target import Target
from penstock.model.settings import Settings
from penstock.worker.supervisor.child import ChildSetup
from tests.worker.conftest import crew
from tests.worker.harness import Crew

__all__ = ["crew"]


@pytest.fixture
def password(url: str) -> Iterator[str]:
    """A password that the server knows, of a user with the same name."""
    password = secrets.token_hex(8)
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", password, "on", f">{password}", "~*", "&*", "+@all")
        yield password
        client.execute_command("ACL", "DELUSER", password)


@pytest.mark.skipif(sys.platform != "linux", reason="reads arguments of processes under /proc")
async def test_no_child_of_a_worker_has_the_password_of_its_url_among_its_arguments(
    crew: Crew, url: str, password: str
) -> None:
    worker = await crew.started("-p", "2", "--url", url.replace("://", f"://{password}:{password}@"), children=2)
    job = await crew.tasks.apart.enqueue()  # in a process of its own
    await job.result(10)
    commands = [_command(pid) for pid in _children(worker.pid)]
    assert len(commands) >= 3
    assert [command for command in commands if password in command] == []


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def _children(pid: int) -> list[int]:
    """All processes that a process has started, and those that they have."""
    direct = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return [found for child in direct for found in (child, *_children(child))]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("redis://:hunter2@db:6379/1", "redis://:***@db:6379/1"),
        ("rediss://mail:hunter2@db", "rediss://mail:***@db"),
        ("redis+cluster://:hun/ter2@a,b", "redis+cluster://:***@a,b"),
        ("redis://:hun@ter2@db", "redis://:***@db"),
        ("redis://hunter2@db", "redis://***@db"),
        ("unix://:hunter2@/run/valkey.sock", "unix://:***@/run/valkey.sock"),
        ("redis://db:6379", "redis://db:6379"),
        (None, None),
    ],
)
def test_the_settings_are_shown_without_a_password(given: str | None, shown: str | None) -> None:
    settings = Settings(url=given)
    assert f"url={shown!r}" in repr(settings) == str(settings)
    assert "concurrency=100" in repr(settings)
    assert settings.url == given
    for other in (Target(url=given), ChildSetup(url=given)):
        assert "ter2" not in repr(other)


def test_the_settings_of_an_app_are_shown_without_a_password() -> None:
    app = Penstock("shop", url="redis://:hunter2@db:6379")
    assert "hunter2" not in f"{app!r} {app.settings!r} {app.settings} {app.program!r} {vars(app)}"
