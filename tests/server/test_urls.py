"""URLs: what they mean, what is wrong with them, and that no password is ever shown."""

from pathlib import Path

import pytest

from penstock.errors import BadOption
from penstock.server.urls import Url, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://", Url("tcp", (("localhost", 6379),))),
        ("redis://host", Url("tcp", (("host", 6379),))),
        ("redis://host:7000/3", Url("tcp", (("host", 7000),), db=3)),
        ("redis://host/?db=3", Url("tcp", (("host", 6379),), db=3)),
        ("valkey://host/", Url("tcp", (("host", 6379),))),
        ("REDIS://host", Url("tcp", (("host", 6379),))),
        ("rediss://host", Url("tcp", (("host", 6379),), tls=True)),
        ("valkeys://host", Url("tcp", (("host", 6379),), tls=True)),
        ("redis://[::1]", Url("tcp", (("::1", 6379),))),
        ("redis://[fe80::1]:7000/1", Url("tcp", (("fe80::1", 7000),), db=1)),
        ("redis://:secret@host", Url("tcp", (("host", 6379),), password="secret")),
        ("redis://me:s%2Fe%40c%3Ar%25@host", Url("tcp", (("host", 6379),), username="me", password="s/e@c:r%")),
        ("redis://me:a:b@c@host", Url("tcp", (("host", 6379),), username="me", password="a:b@c")),
        ("unix:///run/v.sock", Url("unix", path=Path("/run/v.sock"))),
        ("unix:///run/a%20b.sock?db=2", Url("unix", path=Path("/run/a b.sock"), db=2)),
        ("unix://me:pw@/run/v.sock", Url("unix", path=Path("/run/v.sock"), username="me", password="pw")),
        ("redis+cluster://a:1,b:2,[::1]", Url("cluster", (("a", 1), ("b", 2), ("::1", 6379)))),
        ("valkey+cluster://a/0", Url("cluster", (("a", 6379),))),
        ("rediss+cluster://a", Url("cluster", (("a", 6379),), tls=True)),
        ("valkeys+cluster://u:p@a", Url("cluster", (("a", 6379),), tls=True, username="u", password="p")),
        ("rediss://a?ssl_ca_certs=/ca.pem", Url("tcp", (("a", 6379),), tls=True, ssl=(("ssl_ca_certs", "/ca.pem"),))),
        ("embedded:///some/dir", Url("embedded", path=Path("/some/dir"))),
        ("embedded:///some/a%20b", Url("embedded", path=Path("/some/a b"))),
    ],
)
def test_a_url_is_read(text: str, expected: Url) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("localhost:6379", "is no URL: write embedded"),
        ("", "is no URL"),
        ("http://host", "Valid: embedded://, redis://"),
        ("redi://host", "Did you mean redis://"),
        ("redis+clutser://host", r"Did you mean redis\+cluster://"),
        ("redis+sentinel://host/service", "Sentinel is not supported yet"),
        ("valkey+sentinel://host/service", "Sentinel is not supported yet"),
        ("redis://host:70000", "1 to 65535"),
        ("redis://host:0", "1 to 65535"),
        ("redis://host:port", "1 to 65535"),
        ("redis://::1", "in brackets"),
        ("redis://[::1", "in brackets"),
        ("redis://[::1]7000", "in brackets"),
        ("redis://host/first", "no number"),
        ("redis://host?db=-1", "no number"),
        ("redis://a,b", r"redis\+cluster://"),
        ("redis+cluster://a/1", "no database but 0"),
        ("redis+cluster://a?db=1", "no database but 0"),
        ("redis://host?dbb=1", "Valid: db"),
        ("redis://host?decode_responses=True", "Valid: db"),
        ("rediss://host?ssl=1", "Valid: db, ssl_ca_certs"),
        ("rediss://host?ssl_cert_reqs=maybe", "Valid: required, optional, none"),
        ("embedded:///dir?db=1", "Valid: none"),
        ("embedded://dir", "three slashes"),
        ("unix://run/v.sock", "absolute path"),
        ("unix://", "absolute path"),
        ("unix:///" + "x" * 120, "107 bytes"),
    ],
)
def test_a_bad_url_is_refused_with_what_is_valid(text: str, advice: str) -> None:
    with pytest.raises(BadOption, match=advice):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "redis://u:hunter2@host:port",
        "redis://hunter2@host",
        "redis://:hunter2/x@host",
        "redis://:hun?ter2@host",
        "redis://:x?hunter2=1@host",
        "redis+x://:hunter2@host",
        "user:hunter2@host",
        "redis://:hunter2@a,b",
        "redis://:hunter2@[::1",
        "redis+cluster://:hunter2@a/1",
        "redis+sentinel://:hunter2@a/x",
        "embedded://:hunter2@/dir",
    ],
)
def test_no_error_shows_the_password(text: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse(text)
    shown = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert "hunter2" not in shown
    assert "ter2" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:hunter2@host:7000/3", "redis://me:***@host:7000/3"),
        ("valkeys://:hunter2@[::1]", "rediss://:***@[::1]:6379"),
        ("valkey+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        ("unix://:hunter2@/run/v.sock?db=2", "unix://:***@/run/v.sock?db=2"),
        ("embedded:///some/dir", "embedded:///some/dir"),
    ],
)
def test_a_url_is_shown_without_its_password(text: str, shown: str) -> None:
    url = parse(text)
    assert str(url) == shown
    assert repr(url) == f"Url({shown!r})"
    assert f"{[url]}" == f"[Url({shown!r})]"


def test_embedded_data_is_beside_the_nearest_pyproject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    (tmp_path / "a" / "pyproject.toml").touch()
    assert parse("embedded://").path == tmp_path / "a" / ".penstock"
    (deep / "pyproject.toml").touch()
    assert parse("embedded://").path == deep / ".penstock"


def test_without_a_pyproject_embedded_data_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("embedded://").path == tmp_path / ".penstock"


def test_the_environment_says_where_if_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse().kind == "embedded"
    monkeypatch.setenv("PENSTOCK_URL", "")
    assert parse().kind == "embedded"
    monkeypatch.setenv("PENSTOCK_URL", "redis://there")
    assert parse().hosts == (("there", 6379),)
    assert parse("redis://here").hosts == (("here", 6379),)
