"""What a job costs the server in instructions: `python -m benchmarks.instructions`, three minutes; needs valgrind.

Callgrind counts them, so the figures are the same whatever else the machine does. Kernel time is not in them.
"""

import asyncio
import re
import secrets
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.server import Server
from penstock import Penstock

JOBS: Final = 3_000
LOCKS: Final = 1_000
PAGE: Final = 100
BEFORE: Final = 2_000  #: jobs that are there before anything is counted: a few are kept in another form
SINGLES: Final = 200

Fill = Callable[[int], Awaitable[object]]


class Counted(Server):
    """A server under callgrind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        valgrind = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts")
        super().__init__(folder, before=valgrind, limit=120)

    async def count(self, work: Awaitable[object]) -> int:
        """Instructions that the server took while this was done."""
        self._control("--instr=on", "--zero")
        await work
        self._control("--dump", "--instr=off")
        last = max(self._folder.glob("counts.*"), key=lambda file: int(file.suffix[1:]))
        match = re.search(r"^(?:summary|totals): (\d+)", last.read_text(), re.MULTILINE)
        assert match is not None
        return int(match[1])

    def _control(self, *words: str) -> None:
        for word in words:
            command = ["callgrind_control", word, str(self.pid)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Round:
    """Jobs of one kind on their way through the engine, without workers."""

    def __init__(self, url: str) -> None:
        self.app = Penstock("instructions", url=url)
        self._engine = self.app.client.engine
        self._worker = f"w-{secrets.token_hex(4)}"
        self._calls = 0
        self._running: deque[list[tuple[str, int, bytes]]] = deque()

        @self.app.task(name="async")
        async def nothing(number: int) -> None:
            pass

        self.nothing = nothing

    async def plain(self, number: int) -> None:
        await self.app.enqueue_many(map(self.nothing.call, range(number)))

    async def locked(self, number: int) -> None:
        await self.app.enqueue_many(self.nothing.using(lock=f"lock:{i % LOCKS}").call(i) for i in range(number))

    async def batch(self, number: int) -> None:
        async with self.app.batch() as batch:
            await batch.add_many(map(self.nothing.call, range(number)))

    async def unique(self, number: int) -> None:
        self._keys = getattr(self, "_keys", 0) + number
        first = self._keys - number
        await self.app.enqueue_many(self.nothing.using(unique=f"key-{first + i}").call(i) for i in range(number))

    async def single(self, number: int) -> None:
        for i in range(number):
            await self.nothing.enqueue(i)

    async def register(self) -> None:
        await self._engine.register(self._worker, 600_000)

    async def leases(self, number: int, want: int) -> None:
        """So many calls, of which nothing is settled."""
        for _ in range(number):
            self._calls += 1
            await self._engine.lease(self._worker, self._calls, want=want, answered=self._calls - 1)

    async def drain(self, number: int) -> None:
        """Lease and complete; two pages run at a time, as they do in a worker."""
        while number > 0:
            self._calls += 1
            leased = await self._engine.lease(self._worker, self._calls, want=PAGE, answered=self._calls - 1)
            self._running.append([(lease.id, self._calls, b"") for lease in leased.leases])
            number -= len(leased.leases)
            if len(self._running) > 1:
                await self._engine.complete(self._worker, self._running.popleft())


@contextmanager
def counted() -> Iterator[Counted]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-instructions-"))
    server = Counted(folder)
    try:
        server.wait()
        yield server
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)


async def measure(kind: str) -> dict[str, float]:
    """Instructions a job, in thousands."""
    with counted() as server:
        run: Any = Round(server.url)
        fill: Fill = getattr(run, kind)
        await run.register()
        await fill(BEFORE)
        if kind == "single":
            counts = {"enqueue": await server.count(fill(SINGLES)) / SINGLES}
        else:
            await run.drain(5 * PAGE)
            counts = {
                "enqueue": await server.count(fill(JOBS)) / JOBS,
                "lease and complete": await server.count(run.drain(JOBS)) / JOBS,
            }
        await run.app.aclose()
    return {step: count / 1_000 for step, count in counts.items()}


def main() -> None:
    if not shutil.which("callgrind_control"):
        raise SystemExit("this needs valgrind: install Debian's package of that name")
    print(f"thousand instructions of the server a job, in pages of {PAGE}; single: one enqueue after another")
    for kind in ("plain", "batch", "locked", "unique", "single"):
        for step, thousands in asyncio.run(measure(kind)).items():
            print(f"{kind:8}{step:20}{thousands:8.1f}", flush=True)


if __name__ == "__main__":
    main()
