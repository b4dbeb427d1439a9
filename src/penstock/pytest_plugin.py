"""The pytest plugin: the fixture `penstock` is a sandbox around your app. Installing Penstock activates it.

It imports the rest of Penstock at the first test that needs it, so that other tests do not pay for the import.
"""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.testing import Sandbox

_NO_APP = (
    'which app is to be tested? Name it in pyproject.toml, [tool.penstock] app = "module:attribute", '
    "or write a fixture penstock_app that returns it"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "penstock(inline=True, schedules=False): run at once what the test enqueues, leave out the code's schedules",
    )


@pytest.fixture(scope="session")
def penstock_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server of this test run: $PENSTOCK_TEST_URL, or an embedded one that the processes of xdist share."""
    from penstock.testing.server import VARIABLE, serve  # noqa: PLC0415  (see above)

    if url := os.environ.get(VARIABLE):
        yield url
        return
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder
    url, server = serve(Path(shared) / "penstock")
    yield url
    server.release()


@pytest.fixture(scope="session")
def penstock_app() -> "Penstock":
    """The tested app: the one that the project names; override this fixture to test another."""
    from penstock.app import Penstock  # noqa: PLC0415  (see above)
    from penstock.model.settings import load  # noqa: PLC0415

    module, _, attribute = (load({}).app or "").partition(":")
    if not module:
        pytest.fail(_NO_APP, pytrace=False)
    app: Any = getattr(importlib.import_module(module), attribute or "app", None)
    if not isinstance(app, Penstock):
        pytest.fail(f"{module}:{attribute or 'app'} is {app!r} and no Penstock; {_NO_APP}", pytrace=False)
    return app


@pytest.fixture
def penstock(request: pytest.FixtureRequest, penstock_app: "Penstock", penstock_url: str) -> "Iterator[Sandbox]":
    """A sandbox around the app, open for this test: see `penstock.testing.Sandbox`."""
    from penstock.testing import Sandbox  # noqa: PLC0415  (see above)

    marker = request.node.get_closest_marker("penstock")
    with Sandbox(penstock_app, url=penstock_url, **(marker.kwargs if marker else {})) as sandbox:
        yield sandbox
