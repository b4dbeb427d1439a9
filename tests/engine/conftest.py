"""Every test of the engine runs on a single server and on a cluster."""

import pytest


@pytest.fixture(params=["single", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).url)
