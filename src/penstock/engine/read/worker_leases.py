"""The leases that the server has of a worker."""

from typing import Any, Final

from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR

_AFTER: Final = chr(ord(SEPARATOR) + 1)


async def leases_of(engine: Engine, worker: str) -> list[tuple[str, int]]:
    """Id and call number of each of its leases."""
    key, start, end = engine.keys("leases"), f"[{worker}{SEPARATOR}", f"({worker}{_AFTER}"

    async def ask(client: Any) -> list[bytes]:
        members: list[bytes] = await client.zrange(key, start, end, bylex=True)
        return members

    parts = (member.decode().split(SEPARATOR, 2) for member in await engine.script_client.ask(ask))
    return [(job_id, int(number)) for _, number, job_id in parts]
