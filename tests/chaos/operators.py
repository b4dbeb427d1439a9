"""People who steer while all of it runs: verbs and moments are drawn from the seed; at the end all is as it was.

What is drawn: pause and resume queues, lanes, locks and tasks; set limits; reschedule, run now, cancel, retry, move,
purge and discard one job or many; set, cancel and retry batches; run, pause, set and remove schedules. What is not:
edited arguments, abandoned batches, `doctor --fix`.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from penstock import Penstock
from penstock.errors import PenstockError, ScheduleNotFound
from tests.chaos import load
from tests.chaos.ledger import Ledger

Verb = Callable[[], Awaitable[object]]


class Operators:
    """One verb after the other; what cannot be done at this moment is let be."""

    def __init__(self, app: Penstock, work: load.Load, ledger: Ledger, rng: random.Random) -> None:
        self._app, self._load, self._ledger, self._rng = app, work, ledger, rng
        self.done: dict[str, int] = {}
        self._verbs: dict[str, Verb] = {
            "pause-queue": self._pause_queue,
            "pause-lane": self._pause_lane,
            "pause-lock": self._pause_lock,
            "pause-task": self._pause_task,
            "cap": lambda: app.queue("capped").set(limit=rng.randint(1, load.CAP)),
            "cap-size": self._cap_size,
            "tune": self._tune,
            "reschedule": self._reschedule,
            "run-now": self._run_now,
            "cancel": self._cancel,
            "cancel-many": lambda: app.jobs(queue="bulk", older_than="2s").cancel(),
            "transfer": lambda: app.jobs(queue="bulk").move("default"),
            "purge": lambda: app.queue("purged").purge(),
            "retry": self._retry,
            "retry-dead": self._retry_dead,
            "retry-many": lambda: app.jobs(task="quick", state="dead").retry(),
            "discard": self._discard,
            "set-batch": self._set_batch,
            "cancel-batch": self._cancel_batch,
            "retry-batch": self._retry_batch,
            "cron": self._cron,
            "set-cron": self._set_cron,
        }

    async def run(self, seconds: float) -> None:
        await self._until_done("cap", lambda: self._app.queue("capped").set(limit=load.CAP))
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            name = self._rng.choice(list(self._verbs))
            await self._try(name, self._verbs[name])
            await asyncio.sleep(self._rng.uniform(0.1, 0.8))

    async def rest(self) -> None:
        """Nothing is paused any more."""
        app = self._app
        for name in ("default", "bulk", "orders"):
            await self._until_done("rest", app.queue(name).resume)
        for lane in ("narrow", "rated", "order-0"):
            await self._until_done("rest", app.lane(lane).resume)
            await self._until_done("rest", app.lane(lane).reset)
        for n in range(8):
            await self._until_done("rest", app.lock(f"lock-{n}").resume)
        for task in app.tasks.values():
            await self._until_done("rest", task.resume)
        await self._until_done("rest", lambda: app.queue("bulk").reset())
        await self._until_done("rest", lambda: app.queue("capped").set(limit=load.CAP))
        await self._until_done("rest", lambda: app.schedule("ticks").pause())
        await self._until_done("rest", self._remove_cron)

    async def _try(self, name: str, verb: Verb) -> None:
        try:
            answer = await verb()
        except PenstockError as error:
            self._ledger.note("verb", verb=name, error=repr(error)[:200])
        else:
            self.done[name] = self.done.get(name, 0) + 1
            self._ledger.note("verb", verb=name, answer=repr(answer)[:200])

    async def _until_done(self, name: str, verb: Verb) -> None:
        while True:
            try:
                await verb()
            except PenstockError as error:
                self._ledger.note("verb", verb=name, error=repr(error)[:200])
                await asyncio.sleep(0.3)
            else:
                return

    async def _for_a_while(self, pause: Verb, resume: Verb) -> None:
        try:
            await pause()
            await asyncio.sleep(self._rng.uniform(0.2, 1.5))
        finally:
            await resume()

    async def _pause_queue(self) -> None:
        queue = self._app.queue(self._rng.choice(["default", "bulk", "orders"]))
        await self._for_a_while(queue.pause, queue.resume)

    async def _pause_lane(self) -> None:
        lane = self._app.lane(self._rng.choice(["narrow", "rated", "order-0"]))
        await self._for_a_while(lane.pause, lane.resume)

    async def _pause_lock(self) -> None:
        lock = self._app.lock(f"lock-{self._rng.randrange(8)}")
        await self._for_a_while(lock.pause, lock.resume)

    async def _pause_task(self) -> None:
        task = self._app.tasks[self._rng.choice(["quick", "thread", "old"])]
        await self._for_a_while(task.pause, task.resume)

    async def _cap_size(self) -> None:
        """A queue that takes no more for a moment."""
        queue = self._app.queue("bulk")
        await self._for_a_while(lambda: queue.set(max_size=5), queue.reset)

    async def _tune(self) -> None:
        lane = self._app.lane("narrow")
        await (lane.reset() if self._rng.random() < 0.3 else lane.set(limit=self._rng.randint(1, 3)))

    async def _reschedule(self) -> None:
        if self._load.recent:
            job = self._rng.choice(self._load.recent)
            self._ledger.note("rescheduled", id=job)
            await (await self._app.get_job(job)).reschedule(delay=self._rng.choice(["0ms", "500ms"]))

    async def _run_now(self) -> None:
        if self._load.recent:
            job = self._rng.choice(self._load.recent)
            self._ledger.note("rescheduled", id=job)
            await (await self._app.get_job(job)).run_now()

    async def _retry(self) -> None:
        """The first that is dead; one that was cancelled is to stay so."""
        for job in await self._app.queue(self._rng.choice(["default", "bulk"])).dead(limit=1):
            await (await self._app.get_job(job.id)).retry()

    async def _discard(self) -> list[str]:
        if not self._load.recent:
            return []
        job = self._rng.choice(self._load.recent)
        self._ledger.note("discarded", id=job)
        return await self._app.client.engine.discard([job])

    async def _cancel(self) -> None:
        if self._load.recent:
            job = self._rng.choice(self._load.recent)
            answer = await (await self._app.get_job(job)).cancel()
            self._ledger.note("cancelled", id=job, answer=answer)

    async def _retry_dead(self) -> int:
        queue = self._app.queue(self._rng.choice(["default", "bulk"]))
        return await queue.retry_dead()

    async def _set_batch(self) -> None:
        if self._load.batches:
            await self._rng.choice(self._load.batches).set(priority=self._rng.choice([10, 60]))

    async def _cancel_batch(self) -> None:
        if self._load.batches and self._rng.random() < 0.3:
            batch = self._rng.choice(self._load.batches)
            await batch.cancel()
            self._ledger.note("batch-cancelled", id=batch.id)

    async def _retry_batch(self) -> None:
        if self._load.batches:
            batch = self._rng.choice(self._load.batches)
            self._ledger.note("batch-retried", id=batch.id)
            await batch.retry_failed()

    async def _cron(self) -> None:
        schedule = self._app.schedule("ticks")
        if self._rng.random() < 0.3:
            await schedule.run()
        else:
            await self._for_a_while(schedule.pause, schedule.resume)

    async def _set_cron(self) -> None:
        """One more schedule, for a while."""
        call = self._app.tasks["quick"].call(0.01, 0, "raise")
        schedule = self._app.schedule("extra")
        await self._for_a_while(lambda: schedule.set(call, every=self._rng.choice(["300ms", "1s"])), self._remove_cron)

    async def _remove_cron(self) -> None:
        with contextlib.suppress(ScheduleNotFound):
            await self._app.schedule("extra").remove()
