"""A replica that is behind takes the place of its primary: what was acknowledged last is lost."""

import asyncio
import random
from collections.abc import Callable
from contextlib import closing

from tests.chaos.crew import Crew
from tests.chaos.ledger import now
from tests.chaos.network import Network
from tests.servers import wait_for


class Failover:
    """The replica's own network stalls, the primary dies, all clients are led to the replica."""

    def __init__(self, crew: Crew, rng: random.Random, note: Callable[..., None]) -> None:
        self._crew, self._rng, self._note = crew, rng, note

    async def happen(self) -> None:
        crew, old = self._crew, self._crew.server
        new = await asyncio.to_thread(crew.second_server)
        link = Network(old.port, is_replication=True)
        try:
            await asyncio.to_thread(new.wait)
            with closing(new.client()) as client:
                await asyncio.to_thread(client.execute_command, f"REPLICAOF 127.0.0.1 {link.port}")
                await asyncio.to_thread(wait_for, lambda: client.info("replication")["master_link_status"] == "up")
                await asyncio.sleep(0.3)
                since = now()
                link.stall("requests", "replies")
                await asyncio.sleep(self._rng.uniform(0.02, 0.6))
                await asyncio.to_thread(old.kill)
                link.cut()
                await asyncio.sleep(self._rng.choice([0, 1, 3]))
                await asyncio.to_thread(client.execute_command, "REPLICAOF NO ONE")
            crew.promote(new)
            self._note("failover", since)
        finally:
            link.close()
