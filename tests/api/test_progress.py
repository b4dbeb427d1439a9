"""The progress line of a batch: a terminal shows one line that changes, a log gets a new line now and then."""

from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO

import pytest

from penstock.api.progress import Progress, bar, left, line
from penstock.model.batch_state import BatchStatus

HALF = BatchStatus(
    id="b1",
    name="nightly",
    state="sealed",
    total=1_000,
    done=480,
    dead=20,
    cancelled=0,
    pending=500,
    open=False,
    reason="",
    generation=1,
    parent="",
    priority=None,
    created=datetime.now(UTC),
    ended=None,
)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (HALF, "nightly: 480 of 1,000 done, 8 running, 20 failed, 10.0/s, 0:50 left"),
        (replace(HALF, open=True), "nightly: 480 of 1,000 done, 8 running, 20 failed, 10.0/s, still open"),
        (
            replace(HALF, name="", cancelled=3),
            "b1: 480 of 1,000 done, 8 running, 20 failed, 3 cancelled, 10.0/s, 0:50 left",
        ),
        (replace(HALF, state="ended", pending=0), "nightly: 480 of 1,000 done, 8 running, 20 failed, ended"),
    ],
)
def test_the_line_says_what_is_done_runs_and_failed_the_rate_and_the_time_left(status: BatchStatus, text: str) -> None:
    assert line(status, 8, 10.0) == text


def test_the_bar_takes_the_room_that_there_is() -> None:
    assert bar(HALF, 10) == "[#####.....] "
    assert bar(HALF, 200) == f"[{'#' * 15}{'.' * 15}] "
    assert bar(HALF, 7) == bar(replace(HALF, total=0), 80) == ""
    assert [left(seconds) for seconds in (5, 65, 3_700)] == ["0:05", "1:05", "1:01:40"]


def test_a_terminal_gets_one_line_that_changes_and_a_pipe_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    live, plain = Progress(Terminal()), Progress(StringIO())
    assert (live.pause, plain.pause) == (0.25, 10)
    for shown in (live, plain):
        shown.show(HALF, 8)
        shown.show(replace(HALF, state="ended", done=980, pending=0), 0)
    first, second = live._stream.getvalue().split("\r\x1b[2K")[1:]  # type: ignore[attr-defined]
    assert first.startswith("[##")
    assert "\n" not in first
    assert second.endswith("ended\n")
    assert plain._stream.getvalue().count("\n") == 2  # type: ignore[attr-defined]
    assert "\x1b" not in plain._stream.getvalue()  # type: ignore[attr-defined]
