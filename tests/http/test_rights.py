"""Ten thousand random requests by all kinds of senders: none gets beyond its rights, and none is a 500."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Penstock
from penstock.http.tokens import token_digest
from tests.conftest import namespace
from tests.http.harness import bearer
from tests.http.processes import serve
from tests.http.test_openapi import impatient, pointed
from tests.servers import Server

ROOT = Path(__file__).parents[2]
SECRET = "hunter2"
#: Each has the token NAME-secret.
SENDERS = {
    "nobody": "",
    "viewer": 'role = "viewer"',
    "enqueuer": 'role = "enqueuer"',
    "operator": 'role = "operator"',
    "admin": 'role = "admin"',
    "mailer": 'role = "operator"\nqueues = ["sums"]\nmost_urgent = 20\ncontents = false',
}


def tokens() -> str:
    entries = []
    for name, bounds in SENDERS.items():
        if bounds:
            entries.append(f'[tokens.{name}]\nsha256 = "{token_digest(f"{name}-secret").hex()}"\n{bounds}\n')
    return "\n".join(entries)


async def prepare(name: str, url: str) -> None:
    """Jobs with contents, in a queue that is in the scope of all and in one that is not."""
    async with Penstock(name, url=url) as app:

        @app.task(name="add", queue="sums", retries=0)
        async def add(text: str = "", fail: bool = False) -> str:
            if fail:
                raise ValueError(text)
            return text

        await add.using(id="a").enqueue(SECRET)
        await add.using(id="b").enqueue(SECRET, fail=True)
        await add.using(id="c", delay="1h").enqueue(SECRET)
        await app.run_until_idle()
        await add.using(id="theirs", queue="money", delay="1h").enqueue(SECRET)
        batch = app.batch("theirs", id="theirs")
        await batch.open()
        await batch.add(add.using(delay="1h", queue="money").call(SECRET))


async def untouched(name: str, url: str) -> list[object]:
    """What is not in the scope of most."""
    async with Penstock(name, url=url) as app:
        status = await (await app.get_job("theirs")).status()
        batch = await (await app.get_batch("theirs")).status()
        paused = (await app.client.views.queue_settings()).get("money")
        return [status.state, status.due, status.queue, batch.state, batch.total, paused]


def aimed(document: dict[str, Any]) -> dict[str, Any]:
    """At names that exist, those of others among them."""
    document = pointed(impatient(document))
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    names = {"jobs": ["a", "b", "c", "theirs"], "batches": ["a", "theirs"]}.get(path.split("/")[3])
                    parameter["schema"]["enum"] = names or [*parameter["schema"]["enum"], "money"]
    return document


def attack(document: dict[str, Any], folder: Path, url: str, me: dict[str, Any], token: str, examples: int) -> int:
    """How many requests were made; every check passed for each."""
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", url, "--no-color", "--workers", "1"]
    command += ["--checks", "not_a_server_error,within_rights", "--phases", "fuzzing", "--max-examples", str(examples)]
    ours = {
        "SCHEMATHESIS_HOOKS": "tests.http.rights_check",
        "PYTHONPATH": str(ROOT),
        "RIGHTS_ME": json.dumps(me),
        "RIGHTS_SECRET": SECRET,
    }
    if token:
        command += ["--header", f"Authorization: Bearer {token}"]
    done = subprocess.run(command, cwd=folder, env=os.environ | ours, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    made = re.search(r"(\d+) generated", done.stdout)
    assert made is not None, done.stdout[-2000:]
    return int(made[1])


def check(folder: Path, url: str, sender: str, examples: int) -> int:
    """How many requests this sender made, all of them within its rights."""
    name = namespace()
    asyncio.run(prepare(name, url))
    before = asyncio.run(untouched(name, url))
    file = folder / "tokens.toml"
    file.write_text(tokens())
    with serve(folder, url, name, "tasks:app", "--token-file", str(file)) as process:
        document = httpx.get(f"{process.url}/openapi.json", headers=bearer("admin-secret")).json()
        token = f"{sender}-secret" if SENDERS[sender] else ""
        me = httpx.get(f"{process.url}/api/v1/me", headers=bearer(token)).json() if token else {}
        made = attack(aimed(document), folder, process.url, me, token, examples)
        output = process.output
    print(f"\n{made:,} requests of {sender}")
    assert "Traceback" not in output
    if sender == "viewer":
        assert not re.search(r"viewer: (?!.* refused, ).*, 2\d\d$", output, re.MULTILINE)
    if sender not in {"operator", "admin"}:
        assert asyncio.run(untouched(name, url)) == before
    return made


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sender", SENDERS)
def test_no_random_request_gets_beyond_the_rights_of_its_sender(tmp_path: Path, single: Server, sender: str) -> None:
    assert check(tmp_path, single.url, sender, 8) >= 200


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_request_of_ten_thousand_gets_beyond_the_rights_of_its_sender(tmp_path: Path, single: Server) -> None:
    made = 0
    for sender in SENDERS:
        folder = tmp_path / sender
        folder.mkdir()
        made += check(folder, single.url, sender, 45)
    assert made >= 10_000
