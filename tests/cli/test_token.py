"""`penstock token new`: a token that works, a file that has only its hash, and errors that leave the file alone."""

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.root import main
from penstock.http.tokens import read_tokens, token_digest


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["token", "new", *words])


def test_a_new_token_is_printed_once_and_its_hash_is_added_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    scope = ("--queue", "mail.*", "--queue", "other", "--task", "shop:send")
    bounds = ("--most-urgent", "20", "--max-retries", "5", "--max-timeout", "10m", "--contents", "--expires", "90d")
    made = run("mailer", "--role", "enqueuer", *scope, *bounds, "--file", str(file))
    assert (made.exit_code, made.stderr) == (0, f"mailer was added to {file}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made.stdout.strip() not in file.read_text()
    file.write_text("# kept\n" + file.read_text())
    other = run('odd "name"\\', "--role", "viewer", "--file", str(file))
    assert other.exit_code == 0
    grants = read_tokens(file).by_digest
    mailer = grants[token_digest(made.stdout.strip())]
    assert (mailer.principal.name, mailer.principal.role, mailer.principal.contents) == ("mailer", "enqueuer", True)
    assert (mailer.principal.queues, mailer.principal.tasks) == (("mail.*", "other"), ("shop:send",))
    assert (mailer.principal.most_urgent, mailer.principal.max_retries) == (20, 5)
    assert mailer.principal.max_timeout == "10m"
    assert mailer.expires is not None
    assert timedelta(days=89) < mailer.expires - datetime.now(UTC) < timedelta(days=91)
    assert grants[token_digest(other.stdout.strip())].principal.name == 'odd "name"\\'
    assert file.read_text().startswith("# kept\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens.toml"]


def test_the_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens.toml"
    monkeypatch.setenv("PENSTOCK_HTTP_TOKEN_FILE", str(file))
    made = run("ann", "--role", "viewer", "-o", "json")
    row = json.loads(made.stdout)
    assert (row["name"], row["file"]) == ("ann", str(file))
    assert token_digest(row["token"]).hex() == row["sha256"]
    assert row["entry"] in file.read_text()


def test_without_a_file_what_belongs_there_is_printed_as_a_message() -> None:
    made = run("ann", "--role", "viewer")
    assert made.stdout.startswith("pst_")
    sha256 = token_digest(made.stdout.strip()).hex()
    assert f'[tokens.ann]\nsha256 = "{sha256}"\nrole = "viewer"\n' in made.stderr


def test_a_name_that_is_taken_is_an_error_and_the_file_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    run("ann", "--role", "viewer", "--file", str(file))
    before = file.read_text()
    again = run("ann", "--role", "admin", "--file", str(file))
    assert (again.exit_code, again.stdout) == (2, "")
    assert "has a token 'ann': take another name" in again.stderr
    file.write_text(before + "[broken")
    broken = run("bob", "--role", "admin", "--file", str(file))
    assert (broken.exit_code, broken.stdout) == (2, "")
    assert file.read_text() == before + "[broken"
