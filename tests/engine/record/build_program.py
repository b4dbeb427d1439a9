"""An app and a program for either build of `builds.py`: it reads calls from its standard input and prints the answers.

A call is a line of JSON: the name of a function below and its arguments. So is an answer.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from penstock import Lane, Penstock, Snooze, current_job
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from penstock.model.header import Header

BUILD = "next" if "shade" in Header.__struct_fields__ else "today"
app = Penstock(os.environ["NAMESPACE"], url=os.environ["SERVER"])
engine = app.client.engine

LANES: dict[str, Any] = {
    "lock": {"lock": "door"},
    "limit": {"lane": Lane("few", limit=2)},
    "rate": {"lane": Lane("slow", rate="2/s", burst=1)},
    "order": {"lane": [Lane("line", ordered=True), Lane("few", limit=2)]},
}


@app.task(name="run", retries=3, backoff=[0])
async def run(how: str, _: str = "") -> list[Any]:
    job = current_job()
    if how == "retry" and job.attempt == 1:
        raise ValueError("not at the first attempt")
    if how == "snooze" and _is_first_start(Path(f"snoozed-{job.id}")):
        raise Snooze(0.01)
    if how == "report":
        await job.progress(1, 2, "half")
        job.log("a line")
    return [BUILD, job.attempt]


def _is_first_start(mark: Path) -> bool:
    is_first = not mark.exists()
    mark.touch()
    return is_first


@app.task(name="apart", executor="process")
def apart() -> list[Any]:
    return [BUILD, current_job().attempt]


async def enqueue(task: str, arguments: list[Any], options: dict[str, Any], shade: str) -> str:
    """The id of a new job, in which the field is set that only the next build has."""
    lanes = LANES[options.pop("lanes")] if "lanes" in options else {}
    job = app.find_task(task).using(**options, **lanes).call(*arguments).job
    (answer,) = await engine.enqueue([_shaded(job, shade)])
    assert answer.word == "created"
    return answer.id


async def open_batch(name: str) -> str:
    return (await app.batch(name, limit=5).open()).id


async def add_to_batch(batch: str, shade: str) -> str:
    job = app.find_task("run").call("return").job
    job = msgspec.structs.replace(job, header=msgspec.structs.replace(job.header, batch=batch))
    (answer,) = await engine.enqueue([_shaded(job, shade)])
    assert answer.word == "created"
    return answer.id


def _shaded(job: Any, shade: str) -> Any:
    return msgspec.structs.replace(job, header=msgspec.structs.replace(job.header, shade=shade)) if shade else job


async def set_schedule(schedule: str, shade: str) -> str:
    """A schedule whose jobs have the field that only the next build has."""
    call = app.find_task("run").call("return")
    return await app.schedule(schedule).set(msgspec.structs.replace(call, job=_shaded(call.job, shade)), every="1s")


async def run_schedule(schedule: str) -> str:
    return (await app.schedule(schedule).run()).id


async def last_job_of(schedule: str) -> str:
    return (await app.schedule(schedule).status()).last_job


async def result(job_id: str) -> Any:
    return await (await app.get_job(job_id)).result(timeout=60)


async def read(job_id: str) -> dict[str, Any] | None:
    """What this build reads of a job."""
    record = await app.client.views.job(job_id)
    if record is None:
        return None
    header = record.header
    return {"state": header.state, "queue": header.queue, "shade": getattr(header, "shade", "unknown here")}


async def call(verb: str, arguments: list[Any], options: dict[str, Any]) -> Any:
    """A call of the engine."""
    rows = [tuple(one) if isinstance(one, list) else one for one in arguments[-1]] if verb in WITH_ROWS else None
    return msgspec.to_builtins(
        await getattr(engine, verb)(*(arguments if rows is None else [*arguments[:-1], rows]), **options)
    )


WITH_ROWS = {"complete", "retry", "bury", "crash", "release", "snooze", "log"}


async def listed() -> list[str]:
    return sorted([job.id async for job in app.jobs()])


async def findings() -> list[str]:
    return list(map(str, await audit(engine)))


async def repair() -> int:
    return await reconcile(engine)


COMMANDS = (
    enqueue,
    open_batch,
    add_to_batch,
    set_schedule,
    run_schedule,
    last_job_of,
    result,
    read,
    call,
    listed,
    findings,
    repair,
)


async def main() -> None:
    commands: dict[str, Any] = {command.__name__: command for command in COMMANDS}
    async with app:
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, *arguments = json.loads(line)
            print(json.dumps(await commands[name](*arguments), default=repr), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
