"""Every snippet of the guide runs: its files are put together and tested as a project would be."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

GUIDE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")


def test_every_snippet_of_the_guide_passes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == len(re.findall("```python", GUIDE))
    for name, text in blocks:
        with (pytester.path / name).open("a", encoding="utf-8") as file:
            file.write(text)
    (settings,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    pytester.makepyprojecttoml(settings + '[tool.pytest.ini_options]\npythonpath = ["."]\n')
    options = ["-p", "penstock", "-p", "asyncio", "-W", "error", "-o", "asyncio_default_fixture_loop_scope=function"]
    result = pytester.runpytest_subprocess(*options, "-v", "--strict-markers")
    result.assert_outcomes(passed=GUIDE.count("def test_"))
