"""Arguments that nobody may see are not given back by the text of an error either."""

import enum
import json
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest

from penstock import BadArguments, Bury, JobFailed, Penstock, Retry
from penstock.model.redaction import without_secrets
from penstock.worker.outcome import describe_error
from tests.engine.factories import raw
from tests.worker.conftest import crew
from tests.worker.harness import Crew

__all__ = ["crew"]

PIN = 'hunter2-"quoted"\\ ünï'


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Card:
    number: str
    secret_code: int


async def _texts(app: Penstock, job_id: str) -> list[str]:
    """Everything that is told about a job that failed."""
    status = await (await app.get_job(job_id)).status()
    with pytest.raises(JobFailed) as failed:
        await (await app.get_job(job_id)).result(timeout=0)
    groups = await app.dead_groups()
    stored = await (await raw(app.client.engine)).hget(app.client.engine.keys("attempts"), job_id)
    return [repr(status), str(failed.value), repr(groups), stored.decode(errors="replace")]


async def _dead(app: Penstock, job: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "penstock"):
        await app.run_until_idle()
    for text in (*await _texts(app, job.id), caplog.text):
        assert "hunter2" not in text
    assert "[redacted]" in (await job.status()).attempts[-1].message


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_error_of_a_job_does_not_tell_a_hidden_argument(
    app: Penstock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(pin: str) -> None:
        try:
            _ = dict[str, int]()[pin]
        except KeyError as error:
            raise ValueError(f"bad pin {pin}") from error

    if kind == "async":

        @app.task(name="pay", retries=0, redact=["pin"])
        async def pay(pin: str) -> None:
            refuse(pin)
    else:

        @app.task(name="pay", retries=0, redact=["pin"])
        def pay(pin: str) -> None:
            refuse(pin)

    await _dead(app, await pay.enqueue(PIN), caplog)


async def test_neither_do_a_reason_to_bury_and_a_retry(app: Penstock, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(retries=3)
    async def pay(password: str, how: str) -> None:
        if how == "bury":
            raise Bury(f"bad {password}")
        raise Retry("1h") from ValueError(password)

    job = await pay.enqueue(PIN, "bury")
    await _dead(app, job, caplog)
    assert (await job.status()).reason == "bad [redacted]"
    again = await pay.enqueue(PIN, "retry")
    await app.run_until_idle()
    assert "hunter2" not in repr(await again.status())


async def test_what_one_call_redacts_and_what_is_nested_is_hidden_too(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retries=0)
    async def pay(card: Card, more: dict[str, Any]) -> None:
        raise ValueError(f"{card} {card.number} {more}")

    card = Card("hunter2-4111", 987_654)
    job = await pay.using(redact=["number"]).enqueue(card, {"token": ["hunter2-abc", 12.75], "user": "ann"})
    await _dead(app, job, caplog)
    message = (await job.status()).attempts[-1].message
    assert message.startswith("Card(number='[redacted]', secret_code=[redacted]) [redacted] {'token': ['[redacted]', ")
    assert message.endswith("'user': 'ann'}")


async def test_a_job_in_a_process_of_its_own_does_not_tell_it_either(crew: Crew) -> None:
    job = await crew.tasks.pay_apart.enqueue(PIN)
    await crew.started()
    with pytest.raises(JobFailed, match=r"bad pin \[redacted\]"):
        await job.result(20)
    for text in await _texts(crew.app, job.id):
        assert "hunter2" not in text


async def test_a_job_that_is_taken_by_hand_does_not_tell_it_either(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="mail", retries=0, redact=["pin"])
    async def pay(pin: str) -> None: ...

    job = await pay.enqueue(PIN)
    async with app.queue("mail").stream(limit=1) as leases:
        async for lease in leases:
            await lease.fail(ValueError(f"bad {lease.job.arguments['pin']}"))
            break
    await _dead(app, job, caplog)


@pytest.mark.parametrize("hint", [Colour, Literal["red"]])
async def test_what_is_wrong_with_an_argument_does_not_tell_it(app: Penstock, hint: Any) -> None:
    async def paint(colour: Any, other: Any = "red") -> None: ...

    paint.__annotations__.update(colour=hint, other=hint)
    task = app.task(name="paint", redact=["colour"])(paint)
    for bad in (lambda: task.call("hunter2"), lambda: task.signature.from_json(["hunter2"], {})):
        with pytest.raises(BadArguments, match=r"colour: .*'\[redacted\]'") as error:
            bad()
        assert "hunter2" not in str(error.value)
    with pytest.raises(BadArguments, match="'green'"):
        task.call("red", "green")


def test_values_are_hidden_however_they_are_written_and_short_ones_are_not() -> None:
    arguments = {"pin": [PIN, b"by\x00tes", 12345, True, None, "ab", 7], "user": "ann", "at": timedelta(1)}
    hide = without_secrets(lambda: arguments, {"pin"})
    for text in (PIN, repr(PIN), json.dumps(PIN), repr(b"by\x00tes"), "12345"):
        assert hide(f"<{text}>").strip("<>'\"b") == "[redacted]"
    assert hide("True None ab 7 ann 1 day") == "True None ab 7 ann 1 day"
    assert without_secrets(lambda: arguments, {"*"})("ann") == "[redacted]"
    assert without_secrets(lambda: 1 / 0, {"*"})("ann") == "ann"


def test_a_message_that_is_cut_does_not_leave_a_part_of_a_hidden_value() -> None:
    hide = without_secrets(lambda: {"pin": "hunter2" * 100}, {"pin"})
    described = describe_error(ValueError("x" * 1_990 + "hunter2" * 100), hide)
    assert "hunter" not in described
