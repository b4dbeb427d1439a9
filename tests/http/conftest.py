"""The HTTP service of the app of each test."""

from collections.abc import AsyncIterator

import httpx
import pytest

from penstock import Penstock
from tests.http.harness import serving


@pytest.fixture
async def client(app: Penstock) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(app) as served:
        yield served
