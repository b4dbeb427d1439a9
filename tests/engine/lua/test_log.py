"""log: stores the last lines that attempts of a job wrote."""

from typing import Any

import msgspec

from penstock.engine.engine import Engine
from tests.engine.factories import TestWorker, dump, enqueue, happened, new_job, raw


def lines(first: int, number: int, text: str = "line") -> list[Any]:
    return [[1_000, 1, "info", f"{text} {n}"] for n in range(first, first + number)]


async def kept(engine: Engine, job_id: str) -> list[Any]:
    log: list[Any] = msgspec.msgpack.decode(await (await raw(engine)).hget(engine.keys("logs"), job_id))
    return log


async def _running(engine: Engine) -> TestWorker:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"), new_job("b"))
    await worker.lease(2)
    return worker


async def test_lines_are_added_in_their_order(engine: Engine) -> None:
    await _running(engine)
    assert await engine.log("w", [("a", 1, 0, lines(0, 2)), ("b", 1, 0, lines(0, 1))]) == ["ok", "ok"]
    assert await engine.log("w", [("a", 1, 2, lines(2, 1))]) == ["ok"]
    assert await kept(engine, "a") == [["w\x1f1", 3], 0, lines(0, 3)]
    assert ("log", "a", "") in await happened(engine)


async def test_a_call_that_is_sent_again_adds_no_line_twice(engine: Engine) -> None:
    await _running(engine)
    await engine.log("w", [("a", 1, 0, lines(0, 2))])
    before = (await dump(engine))[engine.keys("logs")]
    assert await engine.log("w", [("a", 1, 0, lines(0, 2))]) == ["ok"]
    assert (await dump(engine))[engine.keys("logs")] == before


async def test_a_job_that_is_not_known_or_forgotten_takes_no_lines(engine: Engine) -> None:
    await _running(engine)
    await engine.complete("w", [("b", 1, b"")])
    await engine.discard(["b"])
    before = await dump(engine)
    assert await engine.log("w", [("b", 1, 0, lines(0, 1)), ("missing", 1, 0, lines(0, 1))]) == ["stale", "stale"]
    assert await dump(engine) == before


async def test_an_attempt_may_add_lines_after_the_next_one_did_and_none_twice(engine: Engine) -> None:
    worker = await _running(engine)
    await engine.retry("w", [("a", 1, 0, "error", "{}")])
    await worker.lease()
    await engine.log("w", [("a", 2, 0, lines(0, 1, "second"))])
    for _ in range(2):
        both = [("a", 1, 0, lines(0, 1, "first")), ("a", 2, 1, lines(1, 1, "second"))]
        assert await engine.log("w", both) == ["ok", "ok"]
    assert [line[3] for line in (await kept(engine, "a"))[2]] == ["second 0", "first 0", "second 1"]


async def test_the_last_lines_are_kept_and_how_many_are_gone(engine: Engine) -> None:
    await _running(engine)
    await engine.log("w", [("a", 1, 0, lines(0, 150))])
    await engine.log("w", [("a", 1, 150, lines(150, 150))])
    assert await kept(engine, "a") == [["w\x1f1", 300], 100, lines(100, 200)]
    await engine.log("w", [("a", 1, 300, lines(300, 30, "x" * 1_000))])
    _, gone, rest = await kept(engine, "a")
    assert gone + len(rest) == 330
    assert sum(len(line[3]) for line in rest) < 16_384 < sum(len(line[3]) for line in rest) + 1_100


async def test_a_later_attempt_goes_on_after_the_one_before(engine: Engine) -> None:
    worker = await _running(engine)
    await engine.log("w", [("a", 1, 0, lines(0, 1))])
    await engine.retry("w", [("a", 1, 0, "error", "{}")])
    await worker.lease()
    await engine.log("w", [("a", 2, 0, lines(0, 1, "again"))])
    assert (await kept(engine, "a"))[2] == [*lines(0, 1), *lines(0, 1, "again")]


async def test_an_unreadable_log_is_replaced(engine: Engine) -> None:
    await _running(engine)
    await (await raw(engine)).hset(engine.keys("logs"), "a", b"\xc1 no list")
    assert await engine.log("w", [("a", 1, 0, lines(0, 1))]) == ["ok"]
    assert (await kept(engine, "a"))[2] == lines(0, 1)


async def test_lines_are_removed_with_their_job(engine: Engine) -> None:
    worker = await _running(engine)
    await engine.log("w", [("a", 1, 0, lines(0, 1))])
    await engine.complete(worker.name, [("a", 1, b"")])
    await engine.discard(["a"])
    assert await (await raw(engine)).hget(engine.keys("logs"), "a") is None
