"""The threads in which blocking jobs run."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from penstock.worker.executors.threads import Threads

MAX_THREADS = 20


@pytest.fixture
async def threads() -> AsyncIterator[Threads]:
    made = Threads(MAX_THREADS)
    yield made
    made.close()


async def test_every_call_is_made_once_and_its_result_comes_back(threads: Threads) -> None:
    made: list[int] = []

    def call(number: int) -> int:
        made.append(number)
        return number * 2

    works = [threads.run(partial(call, n)) for n in range(5_000)]
    assert await asyncio.gather(*(work.result() for work in works)) == [n * 2 for n in range(5_000)]
    assert sorted(made) == list(range(5_000))


async def test_calls_that_block_run_at_once_up_to_the_maximum(threads: Threads) -> None:
    for _ in range(3):  # with threads that are new, and with those that wait
        together = threading.Barrier(MAX_THREADS, timeout=30)
        works = [threads.run(together.wait) for _ in range(MAX_THREADS)]
        assert sorted(await asyncio.gather(*(work.result() for work in works))) == list(range(MAX_THREADS))


async def test_threads_are_never_more_than_their_maximum(threads: Threads) -> None:
    running, seen, lock = 0, [], threading.Lock()

    def call() -> None:
        nonlocal running
        with lock:
            running += 1
            seen.append(running)
        time.sleep(0.001)
        with lock:
            running -= 1

    await asyncio.gather(*(threads.run(call).result() for _ in range(10 * MAX_THREADS)))
    assert len(seen) == 10 * MAX_THREADS
    assert max(seen) <= MAX_THREADS


async def test_a_call_behind_one_that_blocks_does_not_wait_for_it(threads: Threads) -> None:
    release = threading.Event()
    first = threads.run(lambda: release.wait(30))
    assert await asyncio.wait_for(threads.run(lambda: "second").result(), 30) == "second"
    release.set()
    assert await first.result()


async def test_a_waiter_that_is_cancelled_may_wait_again(threads: Threads) -> None:
    release = threading.Event()
    work = threads.run(lambda: release.wait(30))
    for _ in range(3):
        waiting = asyncio.ensure_future(work.result())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    release.set()
    assert await work.result()
    assert await work.result()


async def test_a_result_that_comes_with_the_cancelling_is_kept(threads: Threads) -> None:
    work = threads.run(lambda: "result")
    waiting = asyncio.ensure_future(work.result())
    await asyncio.sleep(0)
    time.sleep(0.05)  # noqa: ASYNC251  (the thread ends while the loop cannot hear of it)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.wait_for(work.result(), 30) == "result"


def named() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock_")}


async def test_closed_threads_end_once_they_have_nothing_to_do() -> None:
    before, release = named(), threading.Event()
    threads = Threads(3)
    works = [threads.run(lambda: release.wait(30)) for _ in range(5)]
    await asyncio.sleep(0.05)
    threads.close()
    release.set()
    assert all(await asyncio.gather(*(work.result() for work in works)))
    ours = named() - before
    for thread in ours:
        thread.join(30)
    assert not any(thread.is_alive() for thread in ours)


async def test_closed_threads_refuse_more_calls() -> None:
    release = threading.Event()
    threads = Threads(1)
    work = threads.run(lambda: release.wait(30))
    threads.close()
    release.set()
    assert await work.result()
    with pytest.raises(RuntimeError, match="has ended"):
        threads.run(lambda: None)


async def test_closed_threads_finish_the_calls_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Threads._take

    def slowly(self: Threads, wake: threading.Lock, *, was_woken: bool) -> Any:
        taken = real(self, wake, was_woken=was_woken)
        time.sleep(0.02 if taken[0] is None else 0)
        return taken

    monkeypatch.setattr(Threads, "_take", slowly)
    for _ in range(3):
        threads = Threads(1)
        await threads.run(lambda: None).result()
        await asyncio.sleep(0.005)  # the thread has found nothing, and is not asleep yet
        work = threads.run(lambda: "done")
        threads.close()
        assert await asyncio.wait_for(work.result(), 30) == "done"


@pytest.mark.parametrize("max_threads", [0, 1, 2])
async def test_existing_threads_do_the_work_when_the_system_starts_no_more(
    monkeypatch: pytest.MonkeyPatch, max_threads: int
) -> None:
    real = threading.Thread.start
    started: list[threading.Thread] = []

    def start(self: threading.Thread) -> None:
        if len(started) >= max_threads:
            raise RuntimeError("can't start new thread")
        started.append(self)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    threads, made = Threads(MAX_THREADS), list[int]()
    try:
        if not max_threads:
            with pytest.raises(RuntimeError, match="starts no thread"):
                threads.run(lambda: made.append(0))
            monkeypatch.undo()
        works = [threads.run(partial(made.append, n)) for n in range(1, 200)]
        await asyncio.wait_for(asyncio.gather(*(work.result() for work in works)), 30)
        assert sorted(made) == list(range(1, 200))
    finally:
        threads.close()


def test_a_thread_that_outlives_its_loop_ends_quietly() -> None:
    release, before = threading.Event(), named()

    async def begin() -> None:
        threads = Threads(1)
        threads.run(lambda: release.wait(30))
        threads.close()

    asyncio.run(begin())
    ours = named() - before
    release.set()
    for thread in ours:
        thread.join(30)
    assert not any(thread.is_alive() for thread in ours)
