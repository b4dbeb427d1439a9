"""Settings: from arguments, the environment and pyproject.toml; a bad one is an error that says where it is."""

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import (
    BadOption,
    Penstock,
)
from penstock.model.settings import load


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, "utf-8")
    return folder


def test_an_unknown_setting_is_an_error_that_says_where_and_guesses(tmp_path: Path) -> None:
    folder = project(tmp_path, "[tool.penstock]\nconcurency = 5\n")
    with pytest.raises(BadOption, match=r"tool\.penstock.*pyproject\.toml.*did you mean 'concurrency'.*payload_limit"):
        load({}, folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", "0"),
        ("concurrency", '"many"'),
        ("concurrency", "[1]"),
        ("deadline", '"soon"'),
        ("deadline", "0"),
        ("deadline", "-1"),
        ("lease", '"1 week"'),
        ("payload_limit", "-5"),
        ("payload-limit", '"1 MB"'),
        ("queues", "5"),
    ],
)
def test_a_bad_setting_is_an_error_that_says_where(tmp_path: Path, name: str, value: str) -> None:
    folder = project(tmp_path, f"[tool.penstock]\n{name} = {value}\n")
    with pytest.raises(BadOption, match=rf"pyproject\.toml.*{name.replace('-', '_')}"):
        load({}, folder)


def test_a_pyproject_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"pyproject\.toml"):
        load({}, project(tmp_path, "[tool.penstock\n"))
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadOption, match=r"pyproject\.toml"):
        load({}, tmp_path)


def test_arguments_win_over_the_environment_and_that_over_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = '[tool.penstock]\nconcurrency = 1\nlease = "1m"\ndeadline = 7\npayload-limit = 9\n'
    below = project(tmp_path, table) / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "2")
    monkeypatch.setenv("PENSTOCK_DEADLINE", "2s")
    monkeypatch.setenv("PENSTOCK_QUEUES", "a,b")
    settings = Penstock("never-connected", url="redis://127.0.0.1:1", concurrency=3).settings
    assert (settings.concurrency, settings.deadline, settings.lease, settings.payload_limit) == (3, 2_000, 60_000, 9)
    assert settings.queues == ("a", "b")
    monkeypatch.setenv("PENSTOCK_DEADLINE", "never")
    with pytest.raises(BadOption, match=r"environment.*deadline.*never"):
        Penstock("never-connected")


def test_the_app_is_what_the_project_says_and_only_else_what_the_environment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", "environment:app")
    assert load({}, tmp_path).app == "environment:app"
    assert load({}, project(tmp_path, '[tool.penstock]\napp = "project:app"\n')).app == "project:app"


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("PENSTOCK_CONCURENCY", "PENSTOCK_CONCURRENCY"),
        ("PENSTOCK_ULR", "PENSTOCK_URL"),
        ("PENSTOCK_ENVV", "PENSTOCK_ENV"),
    ],
)
def test_a_misspelt_variable_is_an_error_with_a_suggestion(
    misspelt: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(misspelt, "2")
    with pytest.raises(BadOption, match=rf"environment: unknown variable '{misspelt}'; did you mean '{meant}'\?"):
        Penstock("never-connected")


def test_variables_that_are_no_settings_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [file.read_text("utf-8") for file in Path(penstock.__file__).parent.rglob("*.py")]
    used = {name for text in sources for name in re.findall(r'"(PENSTOCK_[A-Z_]*[A-Z])"', text)}
    of_a_service = ("PENSTOCK_SERVICE_HOST", "PENSTOCK_SERVICE_PORT_HTTP", "PENSTOCK_PORT", "PENSTOCK_PORT_80_TCP_ADDR")
    assert used >= {"PENSTOCK_ENV", "PENSTOCK_SERVER_BIN"}
    for name in (*used, *of_a_service, "PENSTOCK_LONG"):
        monkeypatch.setenv(name, "1")
    load({})


@pytest.mark.parametrize(
    "options", [{"concurrency": 2.7}, {"concurrency": True}, {"queues": "a b"}, {"queues": ""}], ids=str
)
def test_bad_settings_are_refused(options: Any) -> None:
    with pytest.raises(BadOption):
        Penstock("never-connected", url="redis://127.0.0.1:1", **options)


@pytest.mark.parametrize("table", ["[tool]\npenstock = 5\n", "tool = 5\n"])
def test_a_table_that_is_none_is_refused(tmp_path: Path, table: str) -> None:
    from penstock.model.settings import load

    (tmp_path / "pyproject.toml").write_text(table)
    with pytest.raises(BadOption):
        load({}, tmp_path)
