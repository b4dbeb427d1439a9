"""Plain commands that are sent once, outside `ScriptClient.ask`."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from penstock.errors import Unavailable
from penstock.server.endpoint import Endpoint


@contextmanager
def unavailable_on_error(endpoint: Endpoint) -> Iterator[None]:
    """Raise Unavailable for an error of redis-py, so that no code above the engine has to know redis-py."""
    try:
        yield
    except RedisError as error:
        raise Unavailable(f"{endpoint}: {error}") from error
