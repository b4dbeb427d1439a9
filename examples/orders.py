"""Orders to bill now and orders to bill later: the orders are in a database, only their ids are in the queue.

    python examples/orders.py

What was wanted: "process now" and "process later". What is due is processed to the millisecond, without polling the
database, and also if nobody was there when its time came.

How Penstock does it: `.using(at=…)` is later, nothing is now. The engine keeps due times by its own clock; whoever
works when one comes, or next, gets the job. Here half of the orders are billed now and half of them later, and one of
the two workers is killed in the middle. Its jobs come back, so one may run twice: the task looks, in the transaction
in which it writes the bill, whether there is one. Each order is billed exactly once.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock import Backoff, Penstock

ORDERS = 30
FOLDER = Path(os.environ.get("ORDERS_FOLDER") or tempfile.mkdtemp(prefix="orders-"))
os.environ["ORDERS_FOLDER"] = str(FOLDER)  # for its other processes

app = Penstock("orders", url=os.environ.get("PENSTOCK_URL", f"embedded://{FOLDER}/data"))


def database() -> sqlite3.Connection:
    return sqlite3.connect(FOLDER / "orders.sqlite", timeout=30, isolation_level=None)


# The third try comes after 2 + 4 s, the fourth after 6 s more; then somebody has to look at it.
@app.task(name="bill", retries=3, backoff=Backoff("linear", base="2s", jitter=False))
def bill(order: int) -> str:
    """Bill an order, unless it was billed by an attempt whose worker died before it could say so."""
    with closing(database()) as orders:
        orders.execute("BEGIN IMMEDIATE")
        (billed,) = orders.execute("SELECT billed FROM orders WHERE id = ?", (order,)).fetchone()
        if not billed:
            orders.execute("INSERT INTO bills (order_id, worker) VALUES (?, ?)", (order, os.getpid()))
            orders.execute("UPDATE orders SET billed = 1 WHERE id = ?", (order,))
        orders.execute("COMMIT")
    return "billed before" if billed else "billed"


async def work() -> None:
    """A worker process; the short lease brings its jobs back soon if it dies."""
    await app.worker(concurrency=2, lease="1s").run()


async def take_orders() -> None:
    with closing(database()) as orders:
        orders.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER, billed INTEGER DEFAULT 0)")
        orders.execute("CREATE TABLE bills (id INTEGER PRIMARY KEY, order_id INTEGER, worker INTEGER)")
        orders.executemany("INSERT INTO orders (id, amount) VALUES (?, ?)", [(n, n * 10) for n in range(1, ORDERS + 1)])
    async with app:
        soon = datetime.now(UTC) + timedelta(seconds=2)
        now = [bill.using(id=f"bill-{n}").call(n) for n in range(1, ORDERS + 1, 2)]
        later = [bill.using(id=f"bill-{n}", at=soon).call(n) for n in range(2, ORDERS + 1, 2)]
        jobs = await app.enqueue_many(now + later)
        print(f"{len(now)} orders to bill now, {len(later)} at {soon:%H:%M:%S}", flush=True)
        workers = [start_worker(), start_worker()]
        try:
            await jobs[0].result(timeout=30)
            workers[0].send_signal(signal.SIGKILL)  # in the middle, without a word
            print("one of two workers was killed", flush=True)
            for job in jobs:
                await job.result(timeout=60)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    report()


def start_worker() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, __file__, "work"])  # noqa: S603  (ourselves)


def report() -> None:
    with closing(database()) as orders:
        (billed,) = orders.execute("SELECT count(DISTINCT order_id) FROM bills").fetchone()
        (bills,) = orders.execute("SELECT count(*) FROM bills").fetchone()
    print(f"{ORDERS} orders, {billed} of them billed, {bills} bills")


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(work())  # in the same folder, by $ORDERS_FOLDER
    else:
        asyncio.run(take_orders())
