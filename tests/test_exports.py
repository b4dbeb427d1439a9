"""What `import penstock` gives: the names of the public contract, no more and no fewer."""

import builtins
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import errors

#: The contract's names that exist by now, as its page groups them.
NAMES = {
    "an app and its tasks": {"Penstock", "Task", "Call", "Backoff"},
    "a job": {"Job", "JobStatus", "Failure", "JobContext", "current_job", "Retry", "Snooze", "Bury"},
    "time": {"Schedule", "ScheduleStatus", "Tick"},
    "lanes": {"Lane"},
    "batches": {"Batch", "BatchStatus"},
    "watching": {"Event"},
    "workers": {"Worker"},
    "payloads": {"PayloadCodec", "About"},
    "access": {"Principal"},
    "errors": {
        "PenstockError",
        "JobFailed",
        "JobCancelled",
        "JobNotFound",
        "ScheduleNotFound",
        "ResultExpired",
        "StaleLease",
        "QueueFull",
        "PayloadTooLarge",
        "UnknownTask",
        "UnknownKey",
        "BadArguments",
        "BadOption",
        "BatchNotFound",
        "BatchSealed",
        "Unavailable",
        "CannotConnect",
        "UnsuitableServer",
        "SchemaMismatch",
    },
}

#: error → its parents
TREE = {
    "PenstockError": (Exception,),
    "BadOption": (errors.PenstockError, ValueError),
    "SchemaMismatch": (errors.UnsuitableServer,),
    "CannotConnect": (errors.Unavailable,),
}


def test_the_exported_names_are_those_of_the_contract() -> None:
    assert sorted(penstock.__all__) == sorted(set().union(*NAMES.values()))
    assert list(penstock.__all__) == sorted(penstock.__all__)


@pytest.mark.parametrize("name", sorted(penstock.__all__))
def test_every_name_can_be_imported_and_is_ours(name: str) -> None:
    value = getattr(penstock, name)
    assert value.__module__.startswith("penstock.")
    assert value.__doc__
    assert not hasattr(builtins, name)


@pytest.mark.parametrize("name", sorted(NAMES["errors"]))
def test_errors_form_the_documented_tree(name: str) -> None:
    error = getattr(penstock, name)
    assert error.__bases__ == TREE.get(name, (penstock.PenstockError,))
    assert issubclass(error, penstock.PenstockError)
    assert error.__name__ in str(errors.__doc__)
    assert error.__doc__


def test_no_error_of_ours_is_missing_from_the_page_of_errors() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == NAMES["errors"]
    assert defined <= set(re.findall(r"\w+", str(errors.__doc__)))


def test_steering_is_no_error_of_ours() -> None:
    for steer in (penstock.Retry, penstock.Snooze, penstock.Bury):
        assert issubclass(steer, Exception)
        assert not issubclass(steer, penstock.PenstockError)


def test_importing_penstock_connects_to_nothing_starts_nothing_and_imports_no_edge(tmp_path: Path) -> None:
    program = (
        "import sys, threading, penstock\n"
        "app = penstock.Penstock('never-connected')\n"
        "assert threading.active_count() == 1\n"
        "print([name for name in sys.modules if f'{name}.'.startswith(('penstock.cli.', 'click.'))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == "[]"
    assert not (tmp_path / ".penstock").exists()
