"""An app that leads nowhere, and a sandbox around it."""

import logging
from collections.abc import Iterator

import pytest

from penstock import Penstock
from penstock.testing import Sandbox
from tests.servers import Server


@pytest.fixture
def app() -> Penstock:
    """Outside of a sandbox, any use of it is an error."""
    return Penstock("shop", url="redis://127.0.0.1:1", deadline="1s")


@pytest.fixture
def sandbox(app: Penstock, single: Server) -> Iterator[Sandbox]:
    with Sandbox(app, url=single.url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")
