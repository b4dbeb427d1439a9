"""The app of the demo. Its worker processes import this module of the demo and no other."""

import asyncio
import time
from pathlib import Path

from penstock.api.context import current_job
from penstock.app import Penstock
from penstock.model.backoff import Backoff
from penstock.model.batch_state import BatchStatus

app = Penstock("demo")

Span = tuple[float, float]  #: when a run began and ended, on the clock that all processes of a machine share


@app.task(lock="account:{account}")
async def debit(account: str, seconds: float) -> Span:  # noqa: ARG001  (its lock is made of it)
    return await _spend(seconds)


@app.task
async def ordinary() -> int:
    """Return its fence, a number that grows with every start, so that the order of starts is known afterwards."""
    return current_job().fence


@app.task(retries=3, backoff=Backoff("exponential", base="200ms", jitter=False))
async def flaky(failures: int) -> str:
    if (attempt := current_job().attempt) <= failures:
        raise ConnectionError("the other side hung up")
    return f"went through on attempt {attempt}"


@app.task(retries=1, backoff=["100ms"])
def load(folder: str, name: str) -> str:
    file = Path(folder) / name
    if not file.exists():
        raise FileNotFoundError(f"{name} has not arrived")
    return file.read_text()


@app.task
async def resize(picture: int) -> Span:  # noqa: ARG001
    return await _spend(0.1)


@app.task
async def report(status: BatchStatus) -> str:
    return f"{status.done} of {status.total} done"


@app.task
async def render(seconds: float) -> Span:
    return await _spend(seconds)


async def _spend(seconds: float) -> Span:
    began = time.monotonic()
    await asyncio.sleep(seconds)
    return began, time.monotonic()
