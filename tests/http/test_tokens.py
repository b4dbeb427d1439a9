"""The file of tokens: read again when it changes, with an error that says what is wrong; and sessions for tokens."""

import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from penstock import BadOption, Penstock
from penstock.http import sessions, tokens
from penstock.http.sessions import Sessions
from penstock.http.tokens import TokenFile, read_tokens, token_digest
from tests.app_helpers import eventually
from tests.http.harness import bearer, client_at, listening, serving

ME, SESSION = "/api/v1/me", "/api/v1/session"


def entry(name: str, token: str, more: str = 'role = "viewer"') -> str:
    return f'[tokens.{name}]\nsha256 = "{token_digest(token).hex()}"\n{more}\n'


def write(path: Path, text: str) -> None:
    path.write_text(text)


def replace(path: Path, target: Path) -> None:
    path.replace(target)


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("ann", "anns-token"))
    return path


async def test_a_change_of_the_file_counts_without_a_restart(
    app: Penstock, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "CHECK_INTERVAL", 0.0)

    async def status(token: str) -> int:
        return (await client.get(ME, headers=bearer(token))).status_code

    async with serving(app, token_file=file) as client:
        assert (await status("anns-token"), await status("bobs-token")) == (200, 401)
        write(file, entry("bob", "bobs-token"))
        assert (await status("anns-token"), await status("bobs-token")) == (401, 200)
        write(file.with_name("new"), entry("ann", "anns-token"))
        replace(file.with_name("new"), file)  # as editors and `penstock token new` do it
        assert (await status("anns-token"), await status("bobs-token")) == (200, 401)


async def test_a_file_that_cannot_be_read_any_more_is_logged_once_and_the_old_tokens_count(
    app: Penstock, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokens, "CHECK_INTERVAL", 0.0)
    async with serving(app, token_file=file) as client:
        for text in ("[tokens", entry("ann", "anns-token", 'role = "owner"')):
            caplog.clear()
            write(file, text)
            for _ in range(3):
                assert (await client.get(ME, headers=bearer("anns-token"))).status_code == 200
            (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
            assert "the tokens that were read before still count" in line.getMessage()
        caplog.clear()
        remove(file)
        for _ in range(3):
            assert (await client.get(ME, headers=bearer("anns-token"))).status_code == 200
        assert [record.levelname for record in caplog.records].count("ERROR") == 1


async def test_the_file_is_looked_at_once_a_second(app: Penstock, file: Path) -> None:
    read = TokenFile(file)
    write(file, entry("bob", "bobs-token"))
    assert token_digest("anns-token") in read.grants.by_digest
    await eventually(lambda: token_digest("bobs-token") in read.grants.by_digest, within=20)


async def test_a_token_ends_when_it_expires(app: Penstock, file: Path) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    write(file, entry("ann", "anns-token", f'role = "admin"\nexpires = {soon:%Y-%m-%dT%H:%M:%S.%fZ}'))

    async def is_expired() -> bool:
        response = await client.get(ME, headers=bearer("anns-token"))
        return response.status_code == 401 and "has expired on" in response.json()["detail"]

    async with serving(app, token_file=file) as client:
        opened = await client.post(SESSION, json={"token": "anns-token"})
        assert opened.status_code in {200, 401}
        await eventually(is_expired, within=20)
        refused = await client.get(ME)  # with the cookie
        assert (refused.status_code, "has expired on" in refused.json()["detail"]) == (401, True)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[tokens", "tokens.toml: "),
        ("[users.ann]", "unknown section 'users'"),
        ('tokens.ann = "x"', r"written as \[tokens.its-name\]"),
        ('[tokens.ann]\nrole = "viewer"', "sha256 is the SHA-256"),
        ('[tokens.ann]\nsha256 = "hunter2-secret"\nrole = "viewer"', "sha256 is the SHA-256"),
        (entry("ann", "x", ""), "it has no role"),
        (entry("ann", "x", 'role = "owner"'), "unknown role 'owner'"),
        (entry("ann", "x", 'role = "viewer"\nrolle = 1'), "unknown key 'rolle'; did you mean 'role'"),
        (entry("ann", "x", 'role = "viewer"\nname = "bob"'), "unknown key 'name'"),
        (entry("ann", "x", 'role = "viewer"\nqueues = "mail"'), "ann: queues='mail': use a list"),
        (entry("ann", "x", 'role = "viewer"\nexpires = 2030-01-31T08:00:00'), "a time with its zone"),
        (entry("ann", "x", 'role = "viewer"\nexpires = "soon"'), "a time with its zone"),
        (entry("ann", "x") + entry("bob", "x"), "bob and ann are the same token"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_at_the_start(app: Penstock, file: Path, text: str, error: str) -> None:
    write(file, text)
    with pytest.raises(BadOption, match=error) as refused:
        app.asgi(token_file=file)
    assert "hunter2" not in str(refused.value)
    assert str(refused.value).startswith(str(file))


def test_a_file_that_everybody_may_write_or_that_is_not_there_is_refused(app: Penstock, file: Path) -> None:
    file.chmod(0o666)
    with pytest.raises(BadOption, match="chmod o-w"):
        app.asgi(token_file=file)
    with pytest.raises(BadOption, match="No such file"):
        app.asgi(token_file=file.with_name("nothing"))


def test_every_field_of_a_principal_can_be_in_the_file(file: Path) -> None:
    more = 'role = "enqueuer"\ncontents = true\nlimits = false\nqueues = ["mail.*"]\ntasks = ["send"]\n'
    more += 'most_urgent = 20\nmax_retries = 5\nmax_timeout = "10m"\nexpires = 2099-01-31'
    write(file, entry('"ann b"', "x", more))
    (grant,) = read_tokens(file).by_digest.values()
    principal = grant.principal
    assert (principal.name, principal.role, principal.contents, principal.limits) == ("ann b", "enqueuer", True, False)
    assert (principal.queues, principal.tasks) == (("mail.*",), ("send",))
    assert (principal.most_urgent, principal.max_retries, principal.max_timeout) == (20, 5, "10m")
    assert grant.expires == datetime(2099, 1, 31, tzinfo=UTC)


# Sessions


async def test_a_session_lets_a_browser_in_without_its_token(app: Penstock, file: Path) -> None:
    write(file, entry("ann", "anns-token", 'role = "operator"'))
    async with serving(app, token_file=file) as client:
        assert (await client.post(SESSION, json={"token": "another"})).status_code == 401
        assert (await client.post(SESSION, data={"token": "anns-token"})).status_code == 415
        cross = {"Sec-Fetch-Site": "cross-site"}
        assert (await client.post(SESSION, json={"token": "anns-token"}, headers=cross)).status_code == 403
        opened = await client.post(SESSION, json={"token": "anns-token"})
        assert (opened.status_code, opened.json()["name"], opened.json()["sign_out"]) == (200, "ann", SESSION)
        assert "; HttpOnly; SameSite=Strict" in opened.headers["set-cookie"]
        assert "Secure" not in opened.headers["set-cookie"]
        me = (await client.get(ME)).json()
        expected = {
            "name": "ann",
            "role": "operator",
            "contents": True,
            "limits": False,
            "queues": ["*"],
            "tasks": ["*"],
        }
        assert me == me | expected | {"namespace": app.name, "base": "", "sign_out": SESSION}
        assert me["server"].startswith("redis")
        assert (await client.post("/api/v1/dead/retry", json={})).status_code == 200
        assert (await client.post("/api/v1/dead/retry", json={}, headers=cross)).status_code == 403
        assert (await client.delete(SESSION, headers={"Content-Type": "application/json"})).status_code == 204
        assert (await client.get(ME)).status_code == 401


async def test_a_sign_in_is_in_the_audit_log_with_its_name(
    app: Penstock, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(app, token_file=file) as client:
        with caplog.at_level(logging.INFO, "penstock.audit"):
            await client.post(SESSION, json={"token": "anns-token"})
    (line,) = [record.getMessage() for record in caplog.records if record.name == "penstock.audit"]
    assert line == "anybody: session as ann, 200"


async def test_who_gives_a_token_is_told_of_no_session_to_end(app: Penstock, file: Path) -> None:
    async with serving(app, token_file=file) as client:
        assert (await client.get(ME, headers=bearer("anns-token"))).json()["sign_out"] is None


async def test_a_cookie_is_secure_behind_tls(app: Penstock, file: Path) -> None:
    async with serving(app, token_file=file) as client:
        opened = await client.post(SESSION, json={"token": "anns-token"}, headers={"X-Forwarded-Proto": "https"})
        assert opened.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize("change", ["signature", "expiry", "name", "empty", "dots", "digits"])
async def test_a_cookie_that_was_changed_is_worth_nothing(app: Penstock, file: Path, change: str) -> None:
    async with serving(app, token_file=file) as client:
        cookie = (await client.post(SESSION, json={"token": "anns-token"})).headers["set-cookie"].partition(";")[0]
        key, _, value = cookie.partition("=")
        name, expires, signature = value.split(".")
        changed = {
            "signature": f"{name}.{expires}.{'0' * len(signature)}",
            "expiry": f"{name}.{int(expires) + 1}.{signature}",
            "name": f"{'0' * len(name)}.{expires}.{signature}",
            "empty": "",
            "dots": f"{name}..",
            "digits": f"{name}.{'²' * 3}.{signature}".encode().decode("latin-1"),
        }[change]
        async with client_at(int(client.base_url.port or 0)) as plain:
            headers = {"Cookie": f"{key}={changed}".encode("latin-1")}
            assert (await plain.get(ME, headers=headers)).status_code == 401  # type: ignore[arg-type]
            assert (await plain.get(ME, headers={"Cookie": cookie})).status_code == 200


async def test_a_session_ends_after_its_time_and_with_its_token(
    app: Penstock, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "CHECK_INTERVAL", 0.0)
    async with serving(app, token_file=file) as client:
        await client.post(SESSION, json={"token": "anns-token"})
        monkeypatch.setattr(time, "time", lambda now=time.time: now() + sessions.LIFETIME - 60)
        assert (await client.get(ME)).status_code == 200
        monkeypatch.undo()
        monkeypatch.setattr(tokens, "CHECK_INTERVAL", 0.0)
        monkeypatch.setattr(time, "time", lambda now=time.time: now() + sessions.LIFETIME + 60)
        assert (await client.get(ME)).status_code == 401
        monkeypatch.undo()
        monkeypatch.setattr(tokens, "CHECK_INTERVAL", 0.0)
        assert (await client.get(ME)).status_code == 200
        write(file, entry("ann", "anns-new-token"))
        assert (await client.get(ME)).status_code == 401


async def test_services_with_the_same_key_know_each_others_sessions(
    app: Penstock, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, status in (("the-same-key", 200), ("", 401)):
        monkeypatch.setenv("PENSTOCK_HTTP_SESSION_KEY", key)
        async with serving(app, token_file=file) as first, listening(app.asgi(token_file=file)) as port:
            cookie = (await first.post(SESSION, json={"token": "anns-token"})).headers["set-cookie"].partition(";")[0]
            headers = {"Cookie": f"penstock-{port}={cookie.partition('=')[2]}"}
            async with client_at(port) as second:
                assert (await second.get(ME, headers=headers)).status_code == status


def test_a_mounted_service_keeps_its_cookie_to_its_own_path() -> None:
    headers = [(b"host", b"example.com")]
    scope = {"type": "http", "headers": headers, "root_path": "/queue", "scheme": "https"}
    header = Sessions("key").set_cookie(HTTPConnection(scope), b"digest")
    assert header.startswith("penstock=")
    assert "; Path=/queue; " in header
    assert header.endswith("; Secure")


# Guesses


async def test_an_address_that_guesses_has_to_wait_and_locks_out_nobody_who_was_right_before(
    app: Penstock, file: Path
) -> None:
    write(file, entry("ann", "anns-token") + entry("bob", "bobs-token"))
    async with serving(app, token_file=file) as client:
        assert (await client.get(ME, headers=bearer("anns-token"))).status_code == 200
        answers = [await client.get(ME, headers=bearer(f"guess-{number}")) for number in range(20)]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 15
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        assert (await client.post(SESSION, json={"token": "guess-99"})).status_code == 429
        assert (await client.get(ME, headers=bearer("anns-token"))).status_code == 200
        assert (await client.get(ME, headers=bearer("bobs-token"))).status_code == 429  # it might be a guess
        assert (await client.get(ME)).status_code == 401
        assert (await client.get("/livez")).status_code == 200


async def test_a_program_with_an_old_token_is_no_attack(app: Penstock, file: Path) -> None:
    async with serving(app, token_file=file) as client:
        for _ in range(20):
            assert (await client.get(ME, headers=bearer("an-old-token"))).status_code == 401
        assert (await client.get(ME, headers=bearer("anns-token"))).status_code == 200


async def test_guesses_through_a_proxy_are_counted_for_the_address_that_it_names(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HTTP_TOKENS", "viewer:anns-token")
    monkeypatch.setenv("PENSTOCK_HTTP_PROXIES", "127.0.0.1")
    async with listening(app.asgi(), proxy_headers=False) as port, client_at(port) as client:
        for number in range(10):
            guess = bearer(f"guess-{number}") | {"X-Forwarded-For": "192.0.2.1, 192.0.2.7"}
            assert (await client.get(ME, headers=guess)).status_code == (401 if number < 5 else 429)
        right = bearer("anns-token")
        assert (await client.get(ME, headers=right | {"X-Forwarded-For": "192.0.2.7"})).status_code == 429
        assert (await client.get(ME, headers=right | {"X-Forwarded-For": "192.0.2.7, 192.0.2.8"})).status_code == 200


async def test_refusals_are_in_the_audit_log_and_in_the_metrics_and_are_bounded(
    app: Penstock, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(app, token_file=file) as client:
        assert (await client.get(ME, headers=bearer("anns-token"))).status_code == 200
        with caplog.at_level(logging.INFO, "penstock.audit"):
            for number in range(300):
                await client.get(ME, headers=bearer(f"guess-{number}"))
            await client.post("/api/v1/queues/mail/pause", headers=bearer("anns-token"))
        lines = [record for record in caplog.records if record.name == "penstock.audit"]
        assert len(lines) == 10
        assert lines[0].getMessage().startswith("127.0.0.1: GET /api/v1/me refused, 401: these credentials are wrong")
        assert (lines[0].cause, lines[0].client) == ("wrong", "127.0.0.1")  # type: ignore[attr-defined]
        assert "guess-" not in caplog.text
        text = (await client.get("/metrics", headers=bearer("anns-token"))).text
        for cause, number in (("wrong", 5), ("guesses", 295), ("role", 1), ("none", 0)):
            assert f'penstock_http_refusals_total{{cause="{cause}"}} {number}\n' in text


def test_the_digest_of_a_token_is_what_sha256sum_prints() -> None:
    assert token_digest("abc").hex().startswith("ba7816bf8f01cfea")
