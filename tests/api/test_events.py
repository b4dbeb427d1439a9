"""Events: durable, resumable, kept across reconnects, with a gap event for entries that were trimmed."""

import asyncio
from datetime import UTC, datetime

import pytest

from penstock import BadOption, Event, JobNotFound, Penstock, Retry
from penstock.api.events import Events
from tests.app_helpers import eventually
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.proxy import proxied
from tests.servers import Server


async def take(events: Events, number: int) -> list[Event]:
    """The next so many."""
    async with asyncio.timeout(30):
        return [await anext(events) for _ in range(number)]


async def test_events_come_in_order_with_their_queue_task_and_job(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    events = app.events()
    waiting = asyncio.create_task(take(events, 3))
    await asyncio.sleep(0.1)
    job = await send.enqueue()
    await app.run_until_idle()
    found = await waiting
    assert [(one.kind, one.queue, one.task, one.job) for one in found] == [
        (kind, "mail", "send", job.id) for kind in ("enqueue", "lease", "complete")
    ]
    assert [one.attempt for one in found] == [0, 1, 1]
    assert found[0].at <= datetime.now(UTC)


async def test_every_event_can_be_resumed_after_also_in_the_middle_of_one_entry(app: Penstock) -> None:
    @app.task(name="send")
    async def send(number: int) -> None: ...

    await app.enqueue_many(send.call(i) for i in range(20))
    events = [event async for event in app.events(since="0").kept()]
    assert len(events) == 20
    for at, event in enumerate(events):
        assert [one async for one in app.events(since=event.id).kept()] == events[at + 1 :]


async def test_filters_leave_out_what_was_not_asked_for(app: Penstock) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    await send.using(queue="a").enqueue()
    await send.using(queue="b").enqueue()
    await app.queue("a").pause()
    only_a = [event.kind async for event in app.events(queue="a", since="0").kept()]
    assert only_a == ["enqueue", "pause"]
    pauses = [event.queue async for event in app.events(kinds=["pause"], since="0").kept()]
    assert pauses == ["a"]


@pytest.mark.parametrize("bad", [{"kinds": ["nothing"]}, {"queue": "no queue"}])
async def test_a_filter_that_can_match_nothing_is_refused(app: Penstock, bad: dict[str, str]) -> None:
    with pytest.raises(BadOption):
        app.events(**bad)


async def test_since_is_an_id_a_moment_or_how_long_ago(app: Penstock) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    await send.enqueue()
    await asyncio.sleep(0.05)
    between = datetime.now(UTC)
    await asyncio.sleep(0.05)
    await send.enqueue()
    assert len([event async for event in app.events(since=between).kept()]) == 1
    assert len([event async for event in app.events(since="1h").kept()]) == 2
    with pytest.raises(BadOption, match="an event's id"):
        await anext(app.events(since="yesterday"))


async def test_a_gap_is_reported_where_events_were_trimmed(app: Penstock) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    await send.enqueue()
    (first,) = [event async for event in app.events(since="0").kept()]
    for _ in range(5):
        await send.enqueue()
    engine = app.client.engine
    await (await raw(engine)).xtrim(engine.keys("events"), maxlen=2, approximate=False)
    events = [event async for event in app.events(since=first.id, kinds=["enqueue"]).kept()]
    assert [one.kind for one in events] == ["gap", "enqueue", "enqueue"]
    assert first.id.partition("/")[0] in events[0].note
    by_time = [event.kind async for event in app.events(since=first.at).kept()]
    assert by_time == ["gap", "enqueue", "enqueue"]
    everything = [event.kind async for event in app.events(since="0").kept()]
    assert everything == ["enqueue", "enqueue"]


async def test_a_server_that_lost_its_data_is_a_gap_and_what_comes_after_it_is_told(app: Penstock) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    await send.enqueue()
    events = app.events(since="0")
    await take(events, 1)
    engine = app.client.engine
    await (await raw(engine)).delete(*engine.all_keys())
    job = await send.enqueue()
    gap, after = await take(events, 2)
    assert (gap.kind, after.kind, after.job) == ("gap", "enqueue", job.id)


async def test_an_observer_that_reconnects_under_load_misses_nothing(single: Server) -> None:
    name = namespace()
    with proxied(int(single.url.rpartition(":")[2])) as proxy:
        app, observer = Penstock(name, url=single.url), Penstock(name, url=proxy.url)

        @app.task(name="send")
        async def send(number: int) -> None: ...

        seen: list[str] = []
        events = observer.events(since="0", kinds=["enqueue"])

        async def watch() -> None:
            async for event in events:
                seen.append(event.job)
                if len(seen) == 601:
                    return

        watching = asyncio.create_task(watch())
        sent = [(await send.enqueue(0)).id]
        await eventually(lambda: seen)  # the observer is there
        for burst in range(6):
            proxy.lose(1, "XREAD" if burst % 2 else "XRANGE")  # each burst has the observer read
            sent += [(await send.enqueue(i)).id for i in range(100)]
        async with asyncio.timeout(60):
            await watching
        assert seen == sent
        await (await raw(app.client.engine)).delete(*app.client.engine.all_keys())
        assert proxy.lost
        await observer.aclose()
        await app.aclose()


async def test_a_job_tells_its_own_events_from_its_beginning_to_its_end(app: Penstock) -> None:
    @app.task(name="flaky")
    async def flaky() -> None:
        if len(tries) < 1:
            tries.append(1)
            raise Retry(0)

    @app.task(name="other")
    async def other() -> None: ...

    tries: list[int] = []
    job = await flaky.enqueue()
    await other.enqueue()
    async with app.worker():
        async with asyncio.timeout(30):
            kinds = [event.kind async for event in job.events()]
    assert kinds == ["enqueue", "lease", "retry", "lease", "complete"]
    later = [event.kind async for event in job.events()]
    assert later == kinds


async def test_the_events_of_a_job_that_was_cancelled_end_with_that(app: Penstock) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    job = await send.enqueue()
    await job.cancel()
    assert [event.kind async for event in job.events()] == ["enqueue", "cancel"]


async def test_the_events_of_a_job_that_nobody_knows_are_an_error(app: Penstock) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    with pytest.raises(JobNotFound):
        await anext(send.job("missing").events())


async def test_waiting_for_events_does_not_poll(app: Penstock) -> None:
    client = await raw(app.client.engine)
    await app.client.engine.init()
    events = app.events()
    waiting = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0.3)

    async def calls() -> int:
        stats = await client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("xread", "xrange"))

    before = await calls()
    await asyncio.sleep(2)
    assert await calls() - before <= 4
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
