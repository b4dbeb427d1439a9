"""Shared by the random runs on virtual time: the engine that they call, their steps, and how they run."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from penstock.engine.repair.audit import Finding, audit
from tests.conftest import Clock, namespace, open_engine

START = Clock().now

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class World:
    """The engine, on one connection for all runs; and how often each answer was seen in them."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.engine = open_engine(url, namespace(), self.clock)
        self.client = self.engine.script_client.endpoint.client_sync()
        self.seen: Counter[str] = Counter()
        self._messages: Any = self.client.pubsub()  # type: ignore[no-untyped-call]
        self._heard: set[str] = set()
        self._runner = asyncio.Runner()

    def begin(self) -> None:
        self.client.delete(*self.engine.all_keys())
        self.clock.now = START
        self.engine.init().sync()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def listen_for(self, worker: str) -> None:
        """From now on somebody hears what this worker is told."""
        if worker not in self._heard:
            self._heard.add(worker)
            self._messages.ssubscribe(self.engine.keys.channel(worker))

    def last_pushed_job(self) -> tuple[str, bytes]:
        """The last one with a job in it, and the worker that it is for."""
        self.client.spublish(self.engine.keys.channel(min(self._heard)), "mark")
        jobs: list[tuple[str, bytes]] = []
        while (message := self._messages.get_message(timeout=5))["data"] != b"mark":
            if message["type"] == "smessage" and message["data"].startswith(b"job"):
                jobs.append((message["channel"].decode().rpartition(":")[2], message["data"]))
        return jobs[-1]

    def audit(self) -> list[Finding]:
        return self.wait(audit(self.engine))

    def close(self) -> None:
        self.client.delete(*self.engine.all_keys())
        self._messages.close()
        self.wait(self.engine.script_client.endpoint.aclose())
        self._runner.close()


class Steps:
    """What may happen in a run. `@step(often, name=strategy)` adds a method: how often, and what is drawn for it.

    Not a rule for each, for Hypothesis leaves out half of the rules in each run, and little happens without enqueue,
    lease and settle.
    """

    def __init__(self) -> None:
        self._all: list[st.SearchStrategy[tuple[str, dict[str, Any]]]] = []

    def __call__(self, often: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
        def note(method: F) -> F:
            self._all.extend([st.tuples(st.just(method.__name__), st.fixed_dictionaries(arguments))] * often)
            return method

        return note

    def any(self) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
        """One of those that were added."""
        return st.integers(0, len(self._all) - 1).flatmap(self._all.__getitem__)


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@contextmanager
def world_at(url: str) -> Iterator[World]:
    world = World(url)
    try:
        yield world
    finally:
        world.close()


def run(machine: Callable[[], RuleBasedStateMachine], *, runs: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]  # any factory will do
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=tuple(HealthCheck),
            print_blob=True,
        ),
    )
