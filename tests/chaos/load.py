"""Producers: jobs with every option, drawn from the seed. What they sent, and what was answered, is in the ledger."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock import Lane, Penstock
from penstock.api.task import Call
from penstock.errors import BatchNotFound, BatchSealed, PenstockError
from tests.chaos.crew import KILLER
from tests.chaos.ledger import Ledger

LIMITED = Lane("narrow", limit=3)
RATED = Lane("rated", rate="8/s", burst=3)
ORDERED = [Lane(f"order-{n}", ordered=True) for n in range(3)]
LIMITS = {"lane:narrow": 3}
CAP = 4  #: of the queue `capped`
RATE, BURST = 8.0, 3
KILLER_PAUSE = 6.0  #: seconds between two jobs that kill their process: each costs two children of a worker
PAUSE = 0.4  #: seconds after which what was not answered is sent again


class Load:
    """Sends until it is told to stop; never more than so many jobs that nobody has begun."""

    def __init__(
        self, app: Penstock, hands: Penstock, ledger: Ledger, rng: random.Random, *, failover: bool, mixed: bool
    ) -> None:
        self._app, self._hands, self._ledger, self._rng = app, hands, ledger, rng
        self._failover = failover
        self._mixed = mixed  #: also tasks that the code of some workers lacks
        self._numbers: dict[str, int] = {}
        self.stopping = asyncio.Event()
        self.sent = 0
        self.recent: list[str] = []  #: ids that operators may meddle with
        self.batches: list[Any] = []
        self.too_many = False

    async def run(self) -> None:
        """All producers at once, each with choices of its own; an error of one of them is the harness's."""
        makers: list[tuple[Callable[[random.Random], Any], float]] = [
            (self._some, 0.12),
            (self._some, 0.12),
            (self._ordered, 0.15),
            (self._by_hand, 0.15),
            (self._unique, 0.3),
            (self._batch, 1.5),
            *([(self._killer, KILLER_PAUSE)] if self._mixed else []),
        ]
        async with asyncio.TaskGroup() as group:
            for make, pause in makers:
                group.create_task(self._repeat(make, pause, random.Random(self._rng.random())))

    async def _repeat(self, make: Callable[[random.Random], Any], pause: float, rng: random.Random) -> None:
        while not self.stopping.is_set():
            if not self.too_many:
                await make(rng)
            await asyncio.sleep(rng.uniform(0.2, 1.8) * pause)

    # Jobs

    async def _some(self, rng: random.Random) -> None:
        """One or a page, with whatever options."""
        made = [self._random_call(rng) for _ in range(rng.choice([1, 1, 1, 2, 8]))]
        await self._send([call for call, _ in made], [facts for _, facts in made])
        if rng.random() < 0.15:  # the same again, as a caller does that has not seen the answer
            await self._send([call for call, _ in made], [facts for _, facts in made])
        for call, facts in made:
            if call.options.id and rng.random() < 0.3:  # another caller's with the same id
                twin = call.task.call(*facts["arguments"])
                await self._send([twin], [facts])

    def _random_call(self, rng: random.Random) -> tuple[Call[Any], dict[str, Any]]:
        options: dict[str, Any] = {"queue": rng.choice(["default", "bulk", "capped", "purged"])}
        facts: dict[str, Any] = {"holds": {}}
        if rng.random() < 0.45:
            options["lock"] = rng.sample([f"lock-{n}" for n in range(8)], rng.choice([1, 1, 2]))
            facts["holds"] |= {f"lock:{name}": 1 for name in options["lock"]}
        lanes = [lane for lane in (LIMITED, RATED) if rng.random() < 0.1]
        if lanes:
            options["lane"] = lanes
            facts["holds"] |= {f"lane:{lane.name}": LIMITS[f"lane:{lane.name}"] for lane in lanes if lane.limit}
            facts["rated"] = RATED in lanes
        if options["queue"] == "capped":
            facts["holds"]["queue:capped"] = CAP
        if rng.random() < 0.2:
            options["delay"] = facts["delay"] = rng.choice([0.2, 1, 3])
        if rng.random() < 0.1:
            options["expires"] = facts["expires"] = rng.choice([0.5, 2, 5]) + facts.get("delay", 0)
        if rng.random() < 0.3:
            options["priority"] = rng.choice([0, 20, 80])
        if rng.random() < 0.3:
            options["id"] = f"own-{rng.randrange(10**9)}"
        if rng.random() < 0.1:
            options["timeout"] = facts["timeout"] = rng.choice([0.3, 2])
        return self._call(rng, options, facts)

    def _call(
        self, rng: random.Random, options: dict[str, Any], facts: dict[str, Any]
    ) -> tuple[Call[Any], dict[str, Any]]:
        name = rng.choices(["quick", "thread", "apart", "old"], [70, 15, 3, 12 * self._mixed])[0]
        if name == "apart":
            options.pop("timeout", None)
        seconds = rng.choices([0.01, 0.1, 0.5, 2, 4], [35, 35, 17, 9, 4])[0]
        fails, how = 0, "raise"
        if rng.random() < 0.15:
            fails, how = rng.choice([1, 2, 9]), rng.choice(["raise", "raise", "retry", "snooze", "bury"])
            options["retries"] = rng.choice([0, 2, 3])
            fails = min(fails, 2) if how == "snooze" else fails
        task = self._app.tasks[name].using(**options)
        return task.call(seconds, fails, how), facts | {
            "task": name,
            "arguments": [seconds, fails, how],
            "queue": options["queue"],
        }

    async def _ordered(self, rng: random.Random) -> None:
        """The next of an ordered lane: it is sent until it is answered, before any other."""
        lane = rng.choice(ORDERED)
        number = self._numbers[lane.name] = self._numbers.get(lane.name, 0) + 1
        fails = rng.choice([0, 0, 0, 1])
        task = self._app.tasks["quick"].using(queue="orders", lane=lane, id=f"{lane.name}.{number}")
        call = task.call(rng.choice([0.01, 0.1, 0.3]), fails, "raise")
        facts = {"holds": {f"lane:{lane.name}": 1}, "order": lane.name, "number": number}
        await self._send([call], [facts], patient=True)

    async def _unique(self, rng: random.Random) -> None:
        key = f"key-{rng.randrange(4)}"
        call = self._app.tasks["quick"].using(unique=key).call(rng.choice([0.05, 0.5]), 0, "raise")
        await self._send([call], [{"holds": {f"unique:{key}": 1}, "unique": key}])

    async def _killer(self, rng: random.Random) -> None:
        """Its process dies each time when it has returned. With `after` the server may know by then that it has."""
        after = rng.choice([None, 0, 0, 0.002])
        call = self._app.tasks[KILLER].using(queue=rng.choice(["default", "bulk"]), retries=0).call(after)
        await self._send([call], [{"task": KILLER, "holds": {}, "after": after}])

    async def _by_hand(self, rng: random.Random) -> None:
        fails = rng.choice([0, 0, 0, 0, 1])
        lock = f"lock-{rng.randrange(3)}"
        task = self._hands.tasks["by_hand"].using(queue="hand")
        locked = rng.random() < 0.3
        call = (task.using(lock=lock) if locked else task).call(rng.choice([0, 0.02, 0.2]), fails, "raise")
        facts = {"holds": {f"hand:{lock}": 1} if locked else {}, "hand": True}
        await self._send([call], [facts], app=self._hands)

    async def _send(
        self,
        calls: list[Call[Any]],
        facts: list[dict[str, Any]],
        *,
        app: Penstock | None = None,
        patient: bool = False,
    ) -> None:
        """Until it is answered; an impatient one gives up sometimes, and nobody knows what became of its jobs."""
        app = app or self._app
        for call, fact in zip(calls, facts, strict=True):
            self._ledger.note("sent", id=call.job.id, **fact)
        while True:
            try:
                if len(calls) == 1:
                    placed = [calls[0].task.placed(await app.client.producer.enqueue(calls[0].job), app.client)]
                else:
                    placed = await app.enqueue_many(calls)
            except PenstockError as error:
                self._ledger.note("unanswered", ids=[call.job.id for call in calls], error=repr(error)[:300])
                if not patient and self._rng.random() < 0.2:
                    return
                await asyncio.sleep(PAUSE)
            else:
                break
        for call, job in zip(calls, placed, strict=True):
            self._ledger.note("acked", id=call.job.id, became=job.id, created=job.created)
            self.sent += 1
            if app is self._app:
                self.recent = [*self.recent[-60:], job.id]

    # Batches

    async def _batch(self, rng: random.Random) -> None:
        """Opened, filled, sealed or left to be cancelled, sometimes retried after its end; `told` hears of each end."""
        limit = rng.choice([None, 1, 3])
        batch = self._app.batch(
            "chaos",
            limit=limit,
            then=self._app.tasks["told"],
            id=f"batch-{rng.randrange(10**9)}",
            priority=rng.choice([None, 30]),
        )
        self._ledger.note("batch", id=batch.id, limit=limit)
        await self._insist(batch.open)
        for _ in range(rng.choice([1, 2])):
            made = []
            for _ in range(rng.choice([1, 3, 10])):
                options: dict[str, Any] = {"queue": rng.choice(["default", "bulk"]), "retries": rng.choice([0, 3])}
                facts = {"batch": batch.id, "holds": {f"batch:{batch.id}": limit} if limit else {}}
                made.append(self._call(rng, options, facts))
            for call, fact in made:
                self._ledger.note("sent", id=call.job.id, **fact)
            for job in await self._insist(partial(batch.add_many, [call for call, _ in made])) or ():
                self._ledger.note("acked", id=job.id, became=job.id, created=job.created)
                self.sent += 1
        self.batches = [*self.batches[-10:], batch]
        if rng.random() < 0.2:
            await self._insist(batch.cancel)
            self._ledger.note("batch-cancelled", id=batch.id)
        await self._insist(batch.seal)
        self._ledger.note("batch-sealed", id=batch.id)

    async def _insist(self, ask: Callable[[], Any]) -> Any:
        while True:
            try:
                return await ask()
            except BatchSealed:
                return None  # an operator has cancelled it
            except BatchNotFound:
                if self._failover:
                    return None  # it was lost
                raise
            except PenstockError as error:
                self._ledger.note("insists", error=repr(error)[:300])
                await asyncio.sleep(PAUSE)
