from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.servers import Server


@pytest.fixture
def shell(tmp_path: Path, single: Server) -> Shell:
    return Shell(tmp_path, single.url)
