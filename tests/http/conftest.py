"""An app on a real server for each test, and its service."""

from collections.abc import AsyncIterator

import httpx
import pytest

from penstock import Penstock
from tests.api.conftest import app, unhandled, url
from tests.http.harness import serving

__all__ = ["app", "client", "unhandled", "url"]


@pytest.fixture
async def client(app: Penstock) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(app) as served:
        yield served
