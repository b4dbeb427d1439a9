"""Arguments and results: bound, checked, stored, and given back as what they were."""

import asyncio
import enum
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock import (
    BadArguments,
    Job,
    JobFailed,
    PayloadTooLarge,
    Penstock,
)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: float = 0.5


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


BAD_CALLS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "user"),
    ((1, "a", 3), {}, "too many"),
    ((1,), {"user": 2}, "user"),
    ((1,), {"nobody": 2}, "nobody"),
    ((1,), {"queue": "mail"}, "queue"),
    (("1",), {}, "int"),
    ((1.5,), {}, "int"),
    ((None,), {}, "int"),
    ((2**64,), {}, ""),
    ((1, 2), {}, "str"),
    ((1, b"bytes"), {}, ""),
    ((1, print), {}, ""),
    ((1, 1j), {}, ""),
    ((1, "\ud800"), {}, ""),
    ((1,), {"subject": print}, ""),
]


@pytest.mark.parametrize(("args", "kwargs", "hint"), BAD_CALLS, ids=repr)
async def test_wrong_arguments_are_refused_where_they_are_written(
    app: Penstock, args: tuple[Any, ...], kwargs: dict[str, Any], hint: str
) -> None:
    @app.task(name="send")
    async def send(user: int, subject: str = "hi") -> None: ...

    call: Any = send.call
    with pytest.raises(BadArguments, match=r"send.*user: int") as caught:
        call(*args, **kwargs)
    assert hint in str(caught.value)
    enqueue: Any = send.enqueue
    with pytest.raises(BadArguments):
        await enqueue(*args, **kwargs)
    blocking: Any = send.enqueue_sync
    with pytest.raises(BadArguments):
        blocking(*args, **kwargs)
    assert await app.client.views.counts() == {}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", "'delay' is an option, not an argument: say .using(delay=…).enqueue(…)"),
        ("subjct", "unknown argument 'subjct'; did you mean 'subject'? valid are subject, user"),
        ("xyz", "unknown argument 'xyz'; valid are subject, user"),
    ],
)
async def test_an_unknown_argument_name_is_refused_with_advice(app: Penstock, name: str, hint: str) -> None:
    @app.task(name="send")
    async def send(user: int, subject: str = "hi") -> None: ...

    @app.task(name="without")
    async def without() -> None: ...

    enqueue: Any = send.enqueue
    for arguments in ((), (7,)):  # the first one lacks an argument, too
        with pytest.raises(BadArguments) as caught:
            await enqueue(*arguments, **{name: "10m"})
        assert hint in str(caught.value)
    bare: Any = without.enqueue
    with pytest.raises(BadArguments, match=r"unknown argument 'user'; it takes none"):
        await bare(user=1)


async def test_a_parameter_named_like_an_option_is_an_argument(app: Penstock) -> None:
    @app.task
    async def plain(delay: int) -> int:
        return delay

    @app.task
    async def many(**kwargs: int) -> dict[str, int]:
        return kwargs

    jobs = await plain.enqueue(delay=1), await many.enqueue(queue=2)
    await app.run_until_idle()
    assert [await job.result() for job in jobs] == [1, {"queue": 2}]


@pytest.mark.parametrize(
    "value",
    [object(), {1j}, nested(10_000), endless(), (number for number in range(3)), threading.Lock(), 10**100, type],
    ids=lambda value: type(value).__name__,
)
async def test_a_value_that_cannot_be_stored_is_refused(app: Penstock, value: Any) -> None:
    @app.task
    async def anything(x: Any, *rest: Any, **more: Any) -> None: ...

    for args, kwargs in (((value,), {}), ((1, value), {}), ((1,), {"a": value})):
        with pytest.raises(BadArguments, match="anything"):
            anything.call(*args, **kwargs)


async def test_values_that_do_not_fit_their_annotations_are_refused(app: Penstock) -> None:
    @app.task
    async def typed(
        point: Point | None = None,
        colour: Colour = Colour.RED,
        when: datetime | None = None,
        names: dict[str, int] | None = None,
        *numbers: int,
    ) -> None: ...

    call: Any = typed.call
    for bad in (
        {"point": {"x": "1"}},
        {"point": Colour.RED},
        {"colour": "green"},
        {"when": "yesterday"},
        {"names": {"a": "b"}},
        {"names": [1]},
    ):
        with pytest.raises(BadArguments):
            call(**bad)
    with pytest.raises(BadArguments):
        call(None, Colour.RED, None, None, 1, "2")
    assert call(point={"x": 1}, colour="red")  # plain data that fits is as good


async def test_an_annotation_that_cannot_be_resolved_is_named(app: Penstock) -> None:
    async def function(x: Any) -> None: ...

    function.__annotations__ = {"x": "SomethingElse"}
    task = app.task(function)
    with pytest.raises(BadArguments, match="SomethingElse"):
        task.call(1)


async def test_a_payload_over_the_limit_is_refused_and_one_just_under_is_not(app: Penstock) -> None:
    @app.task
    async def weigh(data: bytes) -> int:
        return len(data)

    with pytest.raises(PayloadTooLarge, match="1,048,576"):
        await weigh.enqueue(b"x" * 2**20)
    with pytest.raises(PayloadTooLarge):
        weigh.enqueue_sync(b"x" * 2**20)
    with pytest.raises(PayloadTooLarge):
        await app.enqueue_many(weigh.call(b"x" * size) for size in (1, 2**20))
    job = await weigh.enqueue(b"x" * (2**20 - 100))
    await app.run_until_idle()
    assert await job.result() == 2**20 - 100


async def test_the_limit_of_a_payload_can_be_set(url: str) -> None:
    app = Penstock("never-connected", url=url, payload_limit=100)

    @app.task
    async def weigh(data: bytes) -> None: ...

    weigh.call(b"x" * 80)
    with pytest.raises(PayloadTooLarge, match="limit is 100"):
        weigh.call(b"x" * 101)


async def test_every_kind_of_parameter_arrives_where_it_belongs(app: Penstock) -> None:
    @app.task
    async def anything(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> list[Any]:
        return [a, b, list(rest), c, more]

    @app.task
    async def only_named(*, a: int, b: int = 2) -> list[int]:
        return [a, b]

    @app.task
    async def first_without_name(a: int, /, b: int) -> list[int]:
        return [a, b]

    jobs: list[Job[Any]] = [
        await anything.enqueue(1),
        await anything.enqueue(1, c=5),
        await anything.enqueue(1, 5, 6, 7, c=8, d=9),
        await anything.enqueue(a=1, b=0),
        await only_named.enqueue(a=1),
        await first_without_name.enqueue(1, b=5),
    ]
    await app.run_until_idle()
    assert [await job.result() for job in jobs] == [
        [1, 2, [], 3, {}],
        [1, 2, [], 5, {}],
        [1, 5, [6, 7], 8, {"d": 9}],
        [1, 0, [], 3, {}],
        [1, 2],
        [1, 5],
    ]


class Size(enum.IntEnum):
    BIG = 3


class Shape(msgspec.Struct):
    name: str
    points: list[Point]


class Row(NamedTuple):
    id: int
    text: str


MOMENT = datetime(2026, 7, 5, 12, 30, 0, 123456, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (int, 2**63),
    (int, -(2**63)),
    (float, 1.5),
    (float, float("inf")),
    (bool, False),
    (str, ""),
    (str, "ünï\x00cødé 😀"),
    (bytes, b""),
    (bytes, bytes(range(256))),
    (list[int], []),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, str], (1, "one")),
    (dict[str, list[int]], {"a": [1]}),
    (dict[int, str], {1: "one"}),
    (dict[uuid.UUID, Decimal], {uuid.UUID(int=7): Decimal("1.10")}),
    (datetime, MOMENT),
    (datetime, datetime(2026, 7, 5, 12)),  # noqa: DTZ001  (a naive one must survive, too)
    (date, date(2026, 7, 5)),
    (timedelta, timedelta(days=1, milliseconds=5)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Size, Size.BIG),
    (Point, Point(1, 2.5)),
    (Shape, Shape("line", [Point(0), Point(1)])),
    (Row, Row(1, "one")),
    (list[Point | None], [Point(1), None]),
    (int | str | None, "text"),
    (Any, {"a": [1, 2.5, None, "x"]}),
]


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=[f"{value!r}"[:40] for _, value in VALUES])
async def test_arguments_and_results_arrive_as_what_they_were(app: Penstock, hint: Any, value: Any) -> None:
    seen: list[Any] = []

    async def function(x: Any) -> Any:
        seen.append(x)
        return x

    function.__annotations__ = {"x": hint, "return": hint}
    echo = app.task(name="echo")(function)
    job = await echo.enqueue(value)
    await app.run_until_idle()
    result = await job.result(timeout=5)
    assert (result, type(result)) == (value, type(value))
    assert (seen, type(seen[0])) == ([value], type(value))
    assert await asyncio.to_thread(job.result_sync) == value


async def test_arguments_keep_their_places_when_a_default_is_left_out(app: Penstock) -> None:
    @app.task
    async def first_without_name(a: int, /, b: int = 2, c: int = 3) -> list[int]:
        return [a, b, c]

    job = await first_without_name.enqueue(1, c=5)
    await app.run_until_idle()
    assert await job.result() == [1, 2, 5]  # is [1, 5, 3]


REFUSE = False


@dataclass
class Connected:
    x: int

    def __post_init__(self) -> None:
        if REFUSE:
            raise RuntimeError("no database here")


async def test_arguments_whose_own_code_fails_in_the_worker_end_the_attempt(app: Penstock) -> None:
    global REFUSE  # noqa: PLW0603

    @app.task
    async def use(value: Connected) -> int:
        return value.x

    job = await use.enqueue(Connected(1))
    REFUSE = True
    try:
        async with app.worker(concurrency=1, grace=0.1):
            with pytest.raises(JobFailed):
                await job.result(timeout=2)
    finally:
        REFUSE = False
