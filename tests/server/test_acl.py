"""The users of the server that the guide describes: each can do its work in its namespace, and nothing elsewhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import CannotConnect, Penstock, PenstockError
from penstock.engine.repair.audit import audit
from penstock.engine.repair.doctor import examine
from penstock.engine.scripts import load
from penstock.server import acl
from tests.servers import Server, running

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "workers.md"
RULES = dict(re.findall(r"^ACL SETUSER (\S+) on >secret (.*)$", GUIDE.read_text("utf-8"), re.MULTILINE))

#: What would show, replace or stop something of others.
FORBIDDEN = (
    "FUNCTION FLUSH", "FUNCTION LIST", "FUNCTION KILL", "SCRIPT FLUSH", "SCRIPT KILL", "SCAN 0", "KEYS *", "RANDOMKEY",
    "DBSIZE", "PUBSUB SHARDCHANNELS", "CLIENT LIST", "CLIENT KILL ID 1", "CLIENT PAUSE 1", "CLIENT TRACKING on BCAST",
    "FLUSHALL", "MONITOR", "CONFIG GET *", "SLOWLOG GET", "ACL LIST", "SWAPDB 0 1", "SAVE", "SHUTDOWN",
    "HGETALL penstock:{shop}:jobs", "DEL penstock:{shop}:jobs", "EXPIRE penstock:{shop}:jobs 1",
    "COPY penstock:{shop}:jobs penstock:{other}:jobs", "SUBSCRIBE penstock:{shop}:timer",
    "SPUBLISH penstock:{shop}:timer 1",
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    """A server with the published users of two apps."""
    with running(Server("--appendonly", "no")) as server:
        client: Any = server.client()
        for user, rule in RULES.items():
            client.execute_command("ACL", "SETUSER", user, "on", ">secret", *rule.split())
            other = rule.replace("{shop}", "{other}")
            client.execute_command("ACL", "SETUSER", user.replace("shop", "other"), "on", ">secret", *other.split())
        yield server


def url_of(server: Server, user: str) -> str:
    return f"redis://{user}:secret@127.0.0.1:{server.port}"


def app_of(server: Server, user: str, name: str = "shop") -> Penstock:
    app = Penstock(name, url=url_of(server, user))

    @app.task(name="add", lock="one")
    async def add(x: int, y: int) -> int:
        return x + y

    return app


async def work(app: Penstock) -> None:
    """What an app does, from all sides."""
    add = app.tasks["add"]
    job = await add.enqueue(1, 2)
    async with app.batch("both") as batch:
        await batch.add(add.call(3, 4))
    await app.run_until_idle()
    assert await job.result() == 3
    assert (await batch.wait(5)).done == 1
    assert [event.kind async for event in job.events()][-1] == "complete"
    assert add.enqueue_sync(5, 6).created
    assert await audit(app.client.engine) == []
    assert (await examine(app.client.engine)).healthy


def calls(server: Server, command: str) -> int:
    stats: Any = server.client().info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def install(server: Server, name: str = "shop") -> None:
    """`penstock engine install`, as the server's administrator."""
    command = [sys.executable, "-m", "penstock", "engine", "install", "--namespace", name, "--url", server.url]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"penstock_{load().version}" in printed


def test_the_guide_has_the_rules_that_the_code_has() -> None:
    assert {
        "shop": acl.rule("shop"),
        "shop-web": acl.rule("shop", acl.PRODUCER),
        "shop-watch": acl.rule("shop", acl.WATCHER),
    } == RULES


@pytest.mark.parametrize("installed", [False, True])
async def test_a_user_with_the_full_rule_can_do_all_that_an_app_does(server: Server, installed: bool) -> None:
    if installed:
        install(server)
    async with app_of(server, "shop") as app:
        await work(app)
    assert (calls(server, "fcall") > 1) == installed  # once it is tried


async def test_two_users_with_the_full_rule_share_the_functions_and_nothing_else(server: Server) -> None:
    install(server)
    async with app_of(server, "shop") as shop, app_of(server, "other", "other") as other:
        await work(shop)
        await work(other)
    client: Any = redis.Redis(port=server.port, username="other", password="secret")
    for command in FORBIDDEN:
        with pytest.raises(redis.ResponseError, match="permission"):
            client.execute_command(*command.split())
    with pytest.raises(redis.ResponseError, match="permission"):
        client.function_load(load().library, replace=True)
    for script in ("redis.call('KEYS', '*')", "redis.call('HLEN', 'penstock:{shop}:jobs')"):
        with pytest.raises(redis.ResponseError, match="ACL failure"):
            client.eval(f"return {script}", 0)
    keys = [f"penstock:{{shop}}:{name}" for name in load()["pause"].keys]
    with pytest.raises(redis.ResponseError, match="permission"):
        client.fcall(load()["pause"].function, len(keys), *keys, "default")
    assert len(server.client().function_list()) == 1


async def test_a_producer_adds_jobs_and_waits_for_results_once_the_functions_are_installed(server: Server) -> None:
    async with app_of(server, "shop-web") as web:
        with pytest.raises(CannotConnect, match="penstock engine install"):
            await web.tasks["add"].enqueue(1, 2)
    install(server)
    async with app_of(server, "shop-web") as web, app_of(server, "shop") as shop, shop.worker():
        job = await web.tasks["add"].enqueue(1, 2)
        assert await job.result(timeout=20) == 3
        async with web.batch("sums") as batch:
            await batch.add(web.tasks["add"].call(3, 4))
        assert (await batch.wait(20)).done == 1
    client: Any = redis.Redis(port=server.port, username="shop-web", password="secret")
    for command in ("EVAL 0 0", "DEL penstock:{shop}:jobs", "FUNCTION FLUSH", "HGETALL penstock:{other}:jobs"):
        with pytest.raises(redis.ResponseError, match="permission"):
            client.execute_command(*command.split())


async def test_a_watcher_sees_states_and_events_and_changes_nothing(server: Server) -> None:
    install(server)
    async with app_of(server, "shop") as shop, app_of(server, "shop-watch") as watch:
        job = await shop.tasks["add"].enqueue(1, 2)
        assert [seen.id async for seen in watch.jobs()] == [job.id]
        assert (await (await watch.get_job(job.id)).status()).state == "ready"
        assert (await watch.queue("default").status()).counts["ready"] == 1
        assert await audit(watch.client.engine) == []
        with pytest.raises(PenstockError, match="permission"):
            await watch.tasks["add"].enqueue(1, 2)
        with pytest.raises(PenstockError, match="permission"):
            await watch.queue("default").pause()
        assert (await watch.queue("default").status()).counts["ready"] == 1


async def test_another_namespace_is_refused_with_the_rule_that_is_needed(server: Server) -> None:
    async with app_of(server, "shop", "other") as app:
        with pytest.raises(CannotConnect, match="permission") as refusal:
            await app.tasks["add"].enqueue(1, 2)
    assert acl.rule("NAMESPACE") in str(refusal.value)


@pytest.mark.parametrize("page", [GUIDE, ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_no_page_publishes_a_rule_that_lets_a_user_load_functions(page: Path) -> None:
    rules = re.findall(r"^ACL SETUSER .*$", page.read_text("utf-8"), re.MULTILINE)
    assert all(" -function " in rule for rule in rules)
