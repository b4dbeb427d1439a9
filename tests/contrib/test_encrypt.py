"""Sealed and Compressed: the cipher against its published vectors, and what each way through the app makes of them."""

import asyncio
import base64
import hashlib
import logging
import os
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from penstock import (
    About,
    BadOption,
    BatchStatus,
    Bury,
    Call,
    Job,
    JobFailed,
    PayloadCodec,
    Penstock,
    PenstockError,
    UnknownKey,
    current_job,
)
from penstock.contrib.encrypt import Compressed, Derivation, Sealed
from penstock.engine.engine import NewJob
from penstock.engine.repair.audit import audit
from penstock.engine.repair.doctor import examine
from penstock.model.codec import Envelope, encode
from penstock.model.payload_codec import Codecs, has_sealed_arguments
from penstock.testing import Sandbox
from tests.app_helpers import eventually
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.http.harness import serving

NOVEMBER, MAY = bytes(range(32)), bytes(range(32, 64))
SECRET = "canary-4111"
HERE = About("shop", "shop:send", "GMhDvFiI8U01", "arguments")


# The cipher


@pytest.mark.parametrize(
    ("key", "associated", "subkey", "sealed"),
    [
        (
            b"\x01" * 32,
            b"",
            "c8612c9ed53fe43e8e005b828a1631a0bbcb6ab2f46514ec4f439fcfd0fa969b",
            "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271",
        ),
        (
            b"\x03" * 32,
            b"c2sp.org/XAES-256-GCM",
            "e9c621d4cdd9b11b00a6427ad7e559aeedd66b3857646677748f8ca796cb3fd8",
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    ],
)
def test_the_cipher_gives_what_its_specification_says(key: bytes, associated: bytes, subkey: str, sealed: str) -> None:
    nonce, derivation = b"ABCDEFGHIJKLMNOPQRSTUVWX", Derivation(key)
    assert derivation.key(nonce[:12]).hex() == subkey
    assert derivation.cipher(nonce[:12]).encrypt(nonce[12:], b"XAES-256-GCM", associated).hex() == sealed


def test_the_cipher_gives_what_its_specification_says_of_ten_thousand_random_messages() -> None:
    stream = iter(hashlib.shake_128(b"").digest(10_000 * (32 + 24 + 2 + 2 * 255)))
    digest = hashlib.shake_128()

    def read(length: int) -> bytes:
        return bytes(next(stream) for _ in range(length))

    for _ in range(10_000):
        key, nonce = read(32), read(24)
        plain = read(read(1)[0])
        digest.update(Derivation(key).cipher(nonce[:12]).encrypt(nonce[12:], plain, read(read(1)[0])))
    assert digest.hexdigest(32) == "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"


def test_a_sealed_value_is_the_name_of_the_key_a_nonce_and_what_the_specification_makes_of_it() -> None:
    sealed = Sealed({"2026-11": NOVEMBER}).seal(b"hello", HERE)
    assert sealed[:8] == b"\x072026-11"
    nonce, body = sealed[8:32], sealed[32:]
    assert Derivation(NOVEMBER).cipher(nonce[:12]).decrypt(nonce[12:], body, encode(HERE)) == b"hello"
    assert len(body) == 5 + 16


def test_no_two_messages_have_the_same_nonce_also_across_forks_and_threads() -> None:
    sealed = Sealed({"k": NOVEMBER})
    nonces = {sealed.seal(b"", HERE)[2:26] for _ in range(2_000)}
    reading, writing = os.pipe()
    for _ in range(2):
        if os.fork() == 0:
            os.write(writing, b"".join(sealed.seal(b"", HERE)[2:26] for _ in range(1_000)))
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        others = pipe.read()
    for _ in range(2):
        os.wait()
    nonces |= {others[at : at + 24] for at in range(0, len(others), 24)}
    assert len(nonces) == 4_000


def test_a_derived_key_is_replaced_after_its_share_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.contrib.encrypt.MAX_MESSAGES", 10)
    sealed = Sealed({"k": NOVEMBER})
    values = [sealed.seal(b"%d" % n, HERE) for n in range(100)]
    assert len({value[2:14] for value in values}) == 10
    monkeypatch.setattr("penstock.contrib.encrypt.MAX_DERIVED", 3)
    assert [sealed.open(value, HERE) for value in values] == [b"%d" % n for n in range(100)]


# What is bound to what


def _codecs(**keys: bytes) -> Codecs:
    return Codecs("shop", [Sealed(keys, errors=True, logs=True)])


def test_no_byte_of_a_sealed_value_can_be_changed() -> None:
    codecs = _codecs(k=NOVEMBER)
    sealed = codecs.seal("result", b"hello", "shop:send", "a")
    assert codecs.open("result", sealed, "shop:send", "a") == b"hello"
    for at in range(len(sealed)):
        broken = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with suppress(PenstockError):
            assert codecs.open("result", broken, "shop:send", "a") == broken  # no longer one of ours: not opened
    for end in range(len(sealed)):
        assert codecs.open("result", sealed[:end], "shop:send", "a") == sealed[:end]


def test_a_sealed_value_belongs_to_its_app_task_job_and_kind() -> None:
    codecs, other = _codecs(k=NOVEMBER), Codecs("other", [Sealed({"k": NOVEMBER})])
    sealed = codecs.seal("arguments", b"hello", "shop:send", "a")
    wrong: list[Callable[[], bytes]] = [
        lambda: other.open("arguments", sealed, "shop:send", "a"),
        lambda: codecs.open("result", sealed, "shop:send", "a"),
        lambda: codecs.open("arguments", sealed, "shop:pay", "a"),
        lambda: codecs.open("arguments", sealed, "shop:send", "b"),
        lambda: codecs.open("arguments", sealed, "shop:send", "a@1"),
        lambda: codecs.open("arguments", sealed, "shop:send", "@a"),
        lambda: codecs.open("arguments", sealed, "shop:senda", ""),
    ]
    for attempt in wrong:
        with pytest.raises(PenstockError, match="belongs to another job"):
            attempt()
    text = codecs.seal_text("log", "hello", "shop:send", "a")
    assert codecs.shown_text("log", text, "shop:send", "a") == "hello"
    assert codecs.shown_text("progress", text, "shop:send", "a") == "(sealed, and cannot be opened)"


def test_the_arguments_of_a_schedule_are_those_of_its_jobs_and_of_no_others() -> None:
    codecs = _codecs(k=NOVEMBER)
    sealed = codecs.seal("arguments", b"hello", "shop:send", "nightly@")
    assert codecs.open("arguments", sealed, "shop:send", "nightly@1700000000000") == b"hello"
    for job in ("daily@1700000000000", "nightly", "nightly@x@1"):
        with pytest.raises(PenstockError):
            codecs.open("arguments", sealed, "shop:send", job)


# Keys


def test_the_first_key_seals_and_all_of_them_open() -> None:
    old, both = Sealed({"may": MAY}), Sealed({"november": NOVEMBER, "may": MAY})
    before, after = old.seal(b"x", HERE), both.seal(b"x", HERE)
    assert both.open(before, HERE) == both.open(after, HERE) == b"x"
    with pytest.raises(UnknownKey, match="'november'") as error:
        old.open(after, HERE)
    assert error.value.key == "november"


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"2026-11": NOVEMBER, "2026-05": MAY}
    text = ", ".join(f"{name}:{base64.b64encode(key).decode()}" for name, key in keys.items())
    monkeypatch.setenv("PENSTOCK_KEYS", text)
    sealed = Sealed()
    assert repr(sealed) == "Sealed(keys=['2026-11', '2026-05'], errors=False, logs=False)"
    assert Sealed(keys).open(sealed.seal(b"x", HERE), HERE) == b"x"
    assert Penstock("shop", url="redis://h", codec=sealed).settings  # the variable is one of ours


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"k": b"short"},
        {"k": "x" * 32},
        {"k": NOVEMBER * 2},
        {"": NOVEMBER},
        {"a b": NOVEMBER},
        {1: NOVEMBER},
        [NOVEMBER],
    ],
)
def test_a_key_that_is_none_is_refused_and_not_shown(keys: Any) -> None:
    with pytest.raises(BadOption) as error:
        Sealed(keys)
    assert "short" not in str(error.value)
    assert "xxx" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "hunter2", "k:hunter2!", "k:aHVudGVyMg==", f"k:{base64.b64encode(MAY).decode()},x"]
)
def test_a_variable_without_keys_is_refused_and_not_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEYS", text)
    with pytest.raises(BadOption, match=r"PENSTOCK_KEYS|32 random bytes") as error:
        Sealed()
    assert "hunter2" not in str(error.value)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(PenstockError, match=r"pip install 'penstock\[encrypt\]'"):
        Sealed({"k": NOVEMBER})
    Compressed()


@pytest.mark.parametrize(
    ("codec", "problem"),
    [
        (object(), "use a PayloadCodec"),
        ([Sealed({"k": NOVEMBER}), Compressed()], "put Sealed last"),
        ([Compressed(), Compressed()], "the same code"),
    ],
)
def test_codecs_that_cannot_be_used_are_refused(codec: Any, problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        Penstock("shop", url="redis://h", codec=codec)


# Compressed


def test_a_value_is_compressed_only_if_it_is_large_and_that_makes_it_smaller() -> None:
    codecs = Codecs("shop", [Compressed(over="1k")])
    large, random = b"x" * 5_000, os.urandom(5_000)
    packed = codecs.seal("result", large, "t", "a")
    assert len(packed) < 100
    assert codecs.open("result", packed, "t", "a") == large
    assert codecs.seal("result", random, "t", "a") is random
    assert codecs.seal("result", b"x" * 1024, "t", "a") == b"x" * 1024
    assert Codecs("other").open("result", packed, "u", "b") == large  # no key needed


def test_codecs_are_not_undone_without_end() -> None:
    codecs, data = Codecs("shop", [Compressed(over=0)]), b"x" * 1_000
    for _ in range(20):
        data = encode(msgspec.msgpack.Ext(90, zlib.compress(data)))
    with pytest.raises(PenstockError, match="more than 8 times"):
        codecs.open("result", data, "t", "a")


def test_what_was_compressed_cannot_become_more_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    codecs = Codecs("shop", [Compressed(over=0)])
    packed = codecs.seal("result", bytes(200_000), "t", "a")
    monkeypatch.setattr("penstock.model.payload_codec.MAX_INFLATED", 100_000)
    with pytest.raises(PenstockError):
        codecs.open("result", packed, "t", "a")
    monkeypatch.setattr("penstock.contrib.encrypt.MAX_INFLATED", 100_000)
    assert codecs.seal("result", data := bytes(100_001), "t", "a") is data


@pytest.mark.parametrize("over", ["1x", -1, "", 1.5, None, True])
def test_a_size_that_is_none_is_refused(over: Any) -> None:
    with pytest.raises(BadOption, match="over="):
        Compressed(over=over)


# Through the app


@asynccontextmanager
async def _app(url: str, name: str, *codec: Any) -> AsyncIterator[Penstock]:
    app = Penstock(name, url=url, codec=list(codec))
    try:
        yield app
    finally:
        await app.aclose()


@pytest.fixture
async def app(url: str, unhandled: list[Any]) -> AsyncIterator[Penstock]:
    """An app that seals all that it can."""
    codec: list[PayloadCodec] = [Compressed(over="1k"), Sealed({"november": NOVEMBER}, errors=True, logs=True)]
    made = Penstock(namespace(), url=url, codec=codec)
    yield made
    assert await audit(made.client.engine) == []
    engine = made.client.engine
    await (await raw(engine)).delete(*engine.all_keys())
    await made.aclose()


async def _stored(app: Penstock) -> bytes:
    """All that is stored of the app."""
    client, found = await raw(app.client.engine), bytearray()
    for key in app.client.engine.all_keys():
        match await client.type(key):
            case b"hash":
                found += repr(await client.hgetall(key)).encode()
            case b"zset":
                found += repr(await client.zrange(key, 0, -1)).encode()
            case b"stream":
                found += repr(await client.xrange(key)).encode()
    return bytes(found)


async def test_arguments_and_results_come_back_and_are_not_stored_in_plain(app: Penstock) -> None:
    seen: list[Any] = []

    @app.task
    async def on_loop(text: str, n: int = 1) -> dict[str, str]:
        seen.append((text, n, current_job().arguments))
        return {"back": text * n}

    @app.task(tags=["red"])
    def in_thread(text: str) -> str:
        return text

    @app.task
    async def nothing() -> None: ...

    calls: list[Call[Any]] = [in_thread.call(SECRET), on_loop.call(SECRET), nothing.call()]
    jobs: list[Job[Any]] = [
        await on_loop.enqueue(SECRET),
        await on_loop.using(timeout="30s", tags=["x"], id="mine").enqueue(SECRET, n=500),
        *await app.enqueue_many(calls),
        await asyncio.to_thread(in_thread.enqueue_sync, SECRET),
    ]
    assert (await jobs[0].status()).arguments == {"text": SECRET}
    assert (await jobs[1].status()).tags == ("x",)
    assert SECRET.encode() not in await _stored(app)
    await app.run_until_idle()
    assert SECRET.encode() not in await _stored(app)
    results = [await job.result(timeout=5) for job in jobs]
    back = {"back": SECRET}
    assert results == [back, {"back": SECRET * 500}, SECRET, back, None, SECRET]
    assert [await job.result(timeout=0) for job in jobs] == results
    assert (SECRET, 1, {"text": SECRET}) in seen


async def test_errors_logs_and_progress_come_back_and_are_not_stored_in_plain(app: Penstock) -> None:
    @app.task(retries=1, backoff=[0])
    async def fail(text: str) -> None:
        job = current_job()
        job.log(f"log {text}")
        logging.getLogger("shop").warning("warned of %s", text)
        await job.progress(1, 2, f"progress {text}")
        raise LookupError(f"error {text}")

    @app.task
    async def bury(text: str) -> None:
        raise Bury(f"buried {text}")

    failing, buried = await fail.enqueue(SECRET), await bury.enqueue(SECRET)
    events = [event async for event in _until_buried(app, 2)]
    stored = await _stored(app)
    assert SECRET.encode() not in stored
    assert b"LookupError" not in stored
    status = await failing.status()
    assert [(attempt.type, attempt.message) for attempt in status.attempts] == [("LookupError", f"error {SECRET}")] * 2
    assert "raise LookupError" in status.attempts[0].traceback
    assert status.progress == (1, 2, f"progress {SECRET}")
    assert {f"log {SECRET}", f"warned of {SECRET}"} < {line.text for line in await failing.log()}
    assert (await buried.status()).reason == "buried"
    assert (await buried.status()).attempts[0].message == f"buried {SECRET}"
    with pytest.raises(JobFailed, match=f"LookupError: error {SECRET}"):
        await failing.result()
    assert f'[1, 2, "progress {SECRET}"]' in {event.note for event in events if event.kind == "progress"}
    assert {event.note for event in events if event.kind == "retry"} <= {"failed", ""}
    listed = [job.id async for job in app.jobs(error="lookuperror", state="dead")]
    assert listed == [failing.id]


async def test_errors_alone_are_sealed_also_where_the_worker_logs_them(url: str, unhandled: list[Any]) -> None:
    async with _app(url, namespace(), Sealed({"k": NOVEMBER}, errors=True)) as app:

        @app.task(retries=0)
        async def fail(text: str) -> None:
            current_job().log("a plain line")
            raise ValueError(text)

        job = await fail.enqueue(SECRET)
        await app.run_until_idle()
        stored = await _stored(app)
        assert SECRET.encode() not in stored
        assert b"a plain line" in stored
        assert [line.text for line in await job.log()] == ["a plain line"]
        await (await raw(app.client.engine)).delete(*app.client.engine.all_keys())


async def _until_buried(app: Penstock, number: int) -> AsyncIterator[Any]:
    await app.run_until_idle()
    async for event in app.events(since="0").kept():
        yield event


async def test_dead_jobs_are_grouped_by_their_error_and_the_group_tells_nothing(app: Penstock) -> None:
    @app.task(retries=0)
    async def fail(n: int, what: str) -> None:
        raise ValueError(f"{what} {n}")

    for n in range(3):
        await fail.enqueue(n, SECRET)
    await fail.enqueue(1, "other")
    await app.run_until_idle()
    groups = await app.dead_groups()
    assert [(group.count, group.type) for group in groups] == [(3, "ValueError"), (1, "ValueError")]
    assert groups[0].message.startswith(SECRET)
    async with _app(str(app.settings.url), app.name) as plain:
        # Without the key the same error has another group, so that nobody can try whether it is the one.
        @plain.task(retries=0, name=fail.name)
        async def same(n: int, what: str) -> None:
            raise ValueError(f"{what} {n}")

        await same.enqueue(1, SECRET)
        await plain.run_until_idle()
        shown = await plain.dead_groups()
    assert len(shown) == 3
    assert {group.message for group in shown} == {"(sealed, november)", f"{SECRET} 1"}


async def test_what_a_job_is_retried_with_is_sealed_too(app: Penstock) -> None:
    @app.task(retries=0)
    async def pay(card: str) -> str:
        if card == "bad":
            raise ValueError
        return card

    job = await pay.enqueue("bad")
    await app.run_until_idle()
    await app.retry_job(job.id, {"card": SECRET})
    assert SECRET.encode() not in await _stored(app)
    await app.run_until_idle()
    assert await job.result(timeout=1) == SECRET


async def test_batches_maps_and_what_follows_them_work(app: Penstock) -> None:
    told: list[int] = []

    @app.task
    async def double(text: str) -> str:
        return text * 2

    @app.task
    async def then(status: BatchStatus) -> None:
        told.append(status.total)

    async with app.worker():
        assert await app.map(double, [SECRET, "b"]) == [SECRET * 2, "bb"]
        async with app.batch("nightly", then=then) as batch:
            await batch.add_many([double.call(SECRET), double.call("c")])
        await batch.wait(timeout=20)
        assert {await job.result() async for job in batch.as_completed()} == {SECRET * 2, "cc"}
        await eventually(lambda: told == [2], within=20)
    assert SECRET.encode() not in await _stored(app)


async def test_jobs_that_are_taken_by_hand_are_opened_and_their_results_sealed(app: Penstock) -> None:
    @app.task(queue="mail", retries=0)
    async def send(text: str) -> None: ...

    done, failed = await send.enqueue(SECRET), await send.enqueue(SECRET)
    async with app.queue("mail").stream(limit=2) as leases:
        first, second = await anext(leases), await anext(leases)
        async with first as job:
            job.log(SECRET)
            await job.progress(1, message=SECRET)
            first.result = job.arguments["text"]
        await second.fail(ValueError(SECRET))
    assert SECRET.encode() not in await _stored(app)
    assert (await app.client.views.job(done.id)).result == encode(SECRET)  # type: ignore[union-attr]
    assert (await failed.status()).attempts[0].message == SECRET


async def test_the_jobs_of_a_schedule_are_sealed_and_its_version_stays(url: str, unhandled: list[Any]) -> None:
    name, ran = namespace(), list[str]()

    def make(first: str) -> Penstock:
        keys = {"november": NOVEMBER, "may": MAY}
        app = Penstock(name, url=url, codec=Sealed({first: keys[first], **keys}))

        @app.every("1h", id="hourly", args=[SECRET])
        @app.task(name="tick")
        async def tick(text: str) -> str:
            ran.append(text)
            return text

        return app

    app = make("november")
    async with app, app.worker():
        job = await app.schedule("hourly").run()
        assert await job.result(timeout=20) == SECRET
    for first in ("november", "may"):
        again = make(first)
        async with again, again.worker():
            assert await again.schedule("hourly").pause()
            assert await again.schedule("hourly").resume()
            job = await again.schedule("hourly").run()
            assert await job.result(timeout=20) == SECRET
            changed = [event async for event in again.events(kinds="set_cron", since="0").kept()]
            assert len(changed) == (1 if first == "november" else 2)  # it is sealed anew with the new key
        assert SECRET.encode() not in await _stored(again)
    assert ran == [SECRET] * 3
    await (await raw(again.client.engine)).delete(*again.client.engine.all_keys())
    await again.aclose()


async def test_jobs_over_http_are_sealed_also_with_an_idempotency_key(app: Penstock) -> None:
    @app.task(name="echo")
    async def echo(text: str) -> str:
        return text

    @app.task(name="fail", retries=0)
    async def fail(text: str) -> None:
        raise ValueError(text)

    async with serving(app) as client:
        headers = {"Idempotency-Key": "order-7"}
        posted = await client.post("/api/v1/jobs", json={"task": "echo", "args": [SECRET]}, headers=headers)
        failing = await client.post("/api/v1/jobs", json={"task": "fail", "args": [SECRET]})
        many = await client.post("/api/v1/jobs", json=[{"task": "echo", "args": [SECRET]}] * 2, headers=headers)
        assert all(row["created"] for row in many.json())
        await app.run_until_idle()
        shown = (await client.get(f"/api/v1/jobs/{posted.json()['id']}")).json()
        assert (shown["state"], shown["result"]) == ("done", SECRET)
        assert (await client.get(f"/api/v1/jobs/{failing.json()['id']}")).json()["error"]["message"] == SECRET
    assert SECRET.encode() not in await _stored(app)


async def test_plain_and_sealed_jobs_mix(url: str, unhandled: list[Any]) -> None:
    name = namespace()
    async with _app(url, name) as plain, _app(url, name, Sealed({"k": NOVEMBER})) as sealing:
        for app in (plain, sealing):

            @app.task(name="echo")
            async def echo(text: str) -> str:
                return text

        before = await plain.tasks["echo"].enqueue("before")
        after = await sealing.tasks["echo"].enqueue("after")
        await sealing.run_until_idle()
        assert [await sealing.tasks["echo"].job(job.id).result() for job in (before, after)] == ["before", "after"]
        with pytest.raises(UnknownKey, match=f"the result of job {after.id} is sealed with key 'k'"):
            await plain.tasks["echo"].job(after.id).result()
        with pytest.raises(UnknownKey):
            await plain.tasks["echo"].job(after.id).result(timeout=0)
        await (await raw(plain.client.engine)).delete(*plain.client.engine.all_keys())


async def test_an_app_that_accepts_no_plain_arguments_runs_only_what_was_made_with_a_key(
    url: str, unhandled: list[Any]
) -> None:
    name, ran = namespace(), list[Any]()
    async with _app(url, name) as forger, _app(url, name, Sealed({"k": NOVEMBER}, accepts_plain=False)) as app:

        @app.task(name="pay")
        async def pay(to: str) -> None:
            ran.append(to)

        @app.task(name="paid")
        async def paid(status: BatchStatus) -> None:
            ran.append(status.total)

        @forger.task(name="pay")
        async def forged(to: str, status: str = "") -> None: ...

        bad = [
            await forged.enqueue("eve"),
            await forged.using(tags=["x"]).enqueue("eve"),
            await forged.using(executor="thread").enqueue("eve"),
        ]
        # Also not behind another codec, which needs no key, nor as a batch's status would come.
        squeezed = Codecs(name, [Compressed(over=0)]).seal_payload(
            forged.call("eve" * 50).job.payload, "pay", "squeezed"
        )
        assert has_sealed_arguments(squeezed)
        await forger.client.engine.enqueue([NewJob("squeezed", forged.call("").job.header, squeezed)])
        bad.append(forged.job("squeezed"))
        packed = encode(Envelope(msgspec.Raw(encode({"to": "eve", "status": {}})), status="status"))
        await forger.client.engine.enqueue([NewJob("forged", forged.call("").job.header, packed)])
        bad.append(forged.job("forged"))
        async with app.batch("pay", then=paid) as batch:
            await batch.add(pay.call("ann"))
        await app.run_until_idle()
        await app.run_until_idle()
        assert ran == ["ann", 1]
        for job in bad:
            status = await job.status()
            assert (status.state, status.reason) == ("dead", "undecodable")
        async with app.queue("default").stream(limit=1) as leases:
            job = await forged.enqueue("eve")
            lease = await anext(leases)
            with pytest.raises(PenstockError, match="not sealed"):
                _ = lease.job.arguments
            await lease.fail(ValueError())
        await (await raw(app.client.engine)).delete(*app.client.engine.all_keys())


# Without the key


async def test_who_looks_without_the_key_sees_that_it_is_sealed(app: Penstock, url: str) -> None:
    @app.task(retries=0, name="fail")
    async def fail(text: str) -> None:
        await current_job().progress(1, 2, text)
        current_job().log(text)
        raise ValueError(text)

    @app.task(name="echo")
    async def echo(text: str) -> str:
        return text

    dead, done, waiting = await fail.enqueue(SECRET), await echo.enqueue(SECRET), echo.using(delay="1h")
    await app.run_until_idle()
    later = await waiting.enqueue(SECRET)
    closed = "(sealed, november)"
    async with _app(url, app.name) as plain:

        @plain.task(name="echo")
        async def echo_too(text: str) -> str:
            return text

        status = await (await plain.get_job(dead.id)).status()
        assert (status.attempts[0].message, status.attempts[0].traceback) == (closed, "")
        assert status.progress == (1, 2, closed)
        assert {line.text for line in await (await plain.get_job(dead.id)).log()} == {closed}
        assert (await (await plain.get_job(later.id)).status()).arguments == {"": closed}
        with pytest.raises(JobFailed, match="sealed, november"):
            await (await plain.get_job(dead.id)).result()
        assert [job.id async for job in plain.jobs(state="dead")] == [dead.id]
        async with serving(plain) as client:
            shown = (await client.get(f"/api/v1/jobs/{done.id}")).json()
            assert (shown["state"], shown["result"]) == ("done", closed)
            shown = (await client.get(f"/api/v1/jobs/{dead.id}")).json()
            assert shown["error"]["message"] == closed
        doctor = await examine(plain.client.engine)
        assert "keys" not in doctor.server
    assert (await examine(app.client.engine)).server["keys"] == {"november": 7}
    async with _app(url, app.name, Sealed({"other": MAY})) as other:
        findings = [(found.rule, found.subject) for found in (await examine(other.client.engine)).findings]
        assert ("key", "november") in findings


def test_a_job_without_its_key_waits_for_a_worker_that_has_it_and_is_buried_after_ten_minutes(
    single: Any, caplog: pytest.LogCaptureFixture
) -> None:
    whole, without = Sealed({"november": NOVEMBER, "may": MAY}), Sealed({"may": MAY})
    app = Penstock("shop", url=single.url, codec=whole)

    @app.task
    async def echo(text: str) -> str:
        return text

    def use(codec: Sealed) -> None:
        app.program.codecs = (codec,)
        app.client.engine.codecs = Codecs(app.client.engine.keys.namespace, [codec])

    with Sandbox(app, url=single.url) as sandbox:
        first, second = echo.enqueue_sync("one"), echo.enqueue_sync("two")
        use(without)
        sandbox.run_until_idle_sync()
        status = first.status_sync()
        assert (status.state, status.attempt, status.reason) == ("scheduled", 0, "unknown_key")
        assert "no live worker has key 'november'; the job waits" in caplog.text
        sandbox.run_for_sync("5m")
        assert first.status_sync().state == "scheduled"
        use(whole)
        sandbox.run_for_sync("1m")
        assert first.status_sync().state == second.status_sync().state == "done"
        third = echo.enqueue_sync("three")
        use(without)
        sandbox.run_for_sync("12m")
        dead = third.status_sync()
        assert (dead.state, dead.reason) == ("dead", "undecodable")
        assert "key 'november'" in dead.attempts[-1].message
        use(whole)
        third.retry_sync()
        sandbox.run_until_idle_sync()
        assert third.result_sync(timeout=0) == "three"


async def test_arguments_that_were_changed_or_moved_are_not_run(app: Penstock) -> None:
    ran: list[str] = []

    @app.task(name="pay")
    async def pay(to: str) -> None:
        ran.append(to)

    one, other = await pay.using(delay="1h").enqueue(f"ann{'!' * 300}"), await pay.using(delay="1h").enqueue("bob")
    engine = app.client.engine
    client = await raw(engine)
    payload = await client.hget(engine.keys("payloads"), one.id)
    assert has_sealed_arguments(payload)
    moved = await pay.using(delay="1h").enqueue(f"eve{'!' * 300}")
    await client.hset(engine.keys("payloads"), moved.id, payload)
    await client.hset(engine.keys("payloads"), one.id, payload[:-1] + bytes([payload[-1] ^ 1]))
    for job in (one, other, moved):
        await job.run_now()
    await app.run_until_idle()
    assert ran == ["bob"]
    for job in (one, moved):
        status = await job.status()
        assert (status.state, status.reason) == ("dead", "undecodable")
        assert "belongs to another job" in status.attempts[0].message


def test_the_sandbox_shows_what_was_enqueued_and_runs_it_inline(single: Any) -> None:
    app = Penstock("shop", url=single.url, codec=Sealed({"k": NOVEMBER}, errors=True, logs=True))

    @app.task
    def echo(text: str) -> str:
        current_job().log(text)
        return text

    @app.task(retries=0)
    def fail(text: str) -> None:
        raise ValueError(text)

    with Sandbox(app, url=single.url) as sandbox:
        echo.enqueue_sync(SECRET)
        sandbox.assert_enqueued(echo.call(SECRET))
        with sandbox.inline():
            assert echo.enqueue_sync("now").result_sync(timeout=0) == "now"
            with pytest.raises(ValueError, match="odd"):
                fail.enqueue_sync("odd")


async def test_a_codec_of_ones_own_is_used(url: str, unhandled: list[Any]) -> None:
    class Reversed:
        code = 85
        kinds = ("arguments", "result", "log")

        def seal(self, data: bytes, about: About) -> bytes:
            return data if about.kind == "log" else data[::-1]

        def open(self, data: bytes, about: About) -> bytes:
            return data[::-1]

    async with _app(url, namespace(), Reversed()) as app:

        @app.task
        async def echo(text: str) -> str:
            current_job().log("as it is")
            return text

        job = await echo.enqueue("hello")
        stored = await _stored(app)
        assert b"olleh" in stored
        assert b"hello" not in stored
        await app.run_until_idle()
        assert await job.result() == "hello"
        assert [line.text for line in await job.log()] == ["as it is"]
        await (await raw(app.client.engine)).delete(*app.client.engine.all_keys())
