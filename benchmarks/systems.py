"""The systems that are measured: what to install, and how each runs a worker when it is tuned for its best.

Everything else about a system is in its adapter, `benchmarks/adapters/<name>.py`, which only that system's own virtual
environment can import.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class System:
    """One job queue. `{url}` in a command is the server's; the first word is a program of its environment."""

    name: str
    title: str
    packages: tuple[str, ...]  #: the first one gives the version
    worker: tuple[str, ...]
    settings: str  #: for readers: how it is tuned
    scheduler: tuple[str, ...] = ()  #: a process of its own that delayed jobs need
    is_peer: bool = True
    keeps_record: bool = True  #: of each job by its id, so that one can ask for it, rather than only a place in line


BARE: Final = System(
    name="bare",
    title="bare loop",
    packages=("--editable", ".", "uvloop"),
    worker=("python", "-m", "benchmarks.adapters", "bare", "work"),
    settings="one script takes 100 jobs and settles the last 100; a task per job; its delays are asyncio timers",
    is_peer=False,
)
PENSTOCK: Final = System(
    name="penstock",
    title="Penstock",
    packages=("--editable", ".", "uvloop"),
    worker=("penstock", "worker", "benchmarks.adapters.penstock:app", "-c", "200"),
    settings="`penstock worker -c 200`, everything on",
    is_peer=False,
)
PEERS: Final = (
    System(
        name="rq",
        title="RQ",
        packages=("rq", "hiredis"),
        worker=("rq", "worker", "-u", "{url}", "-w", "rq.SimpleWorker", "--quiet", "--with-scheduler", "bench"),
        settings="SimpleWorker (no fork per job), results not kept, quiet, scheduler on",
    ),
    System(
        name="celery",
        title="Celery",
        packages=("celery", "redis", "hiredis", "packaging"),
        worker=(
            *("celery", "-A", "benchmarks.adapters.celery", "worker", "-P", "solo", "-l", "ERROR", "-Q", "bench"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat", "-n", "{unique}"),
        ),
        settings="solo pool (tried: solo, threads, prefork), results ignored, no gossip, mingle or heartbeat",
        keeps_record=False,
    ),
    System(
        name="dramatiq",
        title="Dramatiq",
        packages=("dramatiq", "redis", "hiredis"),
        worker=("dramatiq", "benchmarks.adapters.dramatiq", "-p", "1", "-t", "16", "--skip-logging"),
        settings="one process, 16 threads (tried: 2, 4, 8, 16, 32, 64), AsyncIO middleware",
    ),
    System(
        name="huey",
        title="Huey",
        packages=("huey", "redis", "hiredis"),
        worker=("huey_consumer", "benchmarks.adapters.huey.huey", "-w", "1", "-k", "thread", "-q", "-s", "1"),
        settings="1 thread (tried: 1, 4, 8), blocking reads, no results",
        keeps_record=False,
    ),
    System(
        name="arq",
        title="arq",
        packages=("arq", "hiredis", "uvloop"),
        worker=("arq", "benchmarks.adapters.arq.WorkerSettings"),
        settings="max_jobs=500 (tried: 20, 100, 500), poll_delay=0.02, results not kept, uvloop",
    ),
    System(
        name="saq",
        title="SAQ",
        packages=("saq[redis]", "hiredis", "uvloop", "typing_extensions"),
        worker=("saq", "benchmarks.adapters.saq.settings"),
        settings="concurrency 500 (tried: 20, 100, 500), results not kept, uvloop",
    ),
    System(
        name="taskiq",
        title="taskiq",
        packages=("taskiq", "taskiq-redis", "hiredis", "uvloop"),
        worker=(
            *("taskiq", "worker", "benchmarks.adapters.taskiq:broker", "--workers", "1", "--log-level", "ERROR"),
            *("--max-async-tasks", "1000", "--max-prefetch", "1000", "--no-parse"),
        ),
        settings="RedisStreamBroker, 1,000 tasks, 1,000 prefetched (tried: 100 and 0, 100, 1,000), no results, uvloop",
        scheduler=(
            *("taskiq", "scheduler", "benchmarks.adapters.taskiq:scheduler", "--log-level", "ERROR"),
            *("--update-interval", "1", "--loop-interval", "1"),
        ),
        keeps_record=False,
    ),
    System(
        name="streaq",
        title="streaQ",
        packages=("streaq", "uvloop"),
        worker=("streaq", "run", "benchmarks.adapters.streaq:worker"),
        settings="concurrency 500 (tried: 20, 100, 500), results not kept, uvloop",
    ),
    System(
        name="bullmq",
        title="bullmq (Python)",
        packages=("bullmq", "hiredis", "uvloop"),
        worker=("python", "-m", "benchmarks.adapters", "bullmq", "work"),
        settings="concurrency 20 (tried: 20, 100, 500), removeOnComplete, uvloop",
    ),
    System(
        name="docket",
        title="docket",
        packages=("pydocket", "hiredis", "uvloop"),
        worker=(
            *("docket", "worker", "--docket", "bench", "--tasks", "benchmarks.adapters.docket:tasks"),
            *("--url", "{url}?max_connections=1000", "--concurrency", "100", "--logging-level", "ERROR"),
            *("--name", "{unique}"),
        ),
        settings="concurrency 100 (tried: 20, 100, 500), results not kept",
    ),
)
SYSTEMS: Final = (BARE, PENSTOCK, *PEERS)
BY_NAME: Final = {system.name: system for system in SYSTEMS}
