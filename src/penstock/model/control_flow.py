"""What a task raises to control its own job; these are not errors."""

from penstock.model.durations import Duration, milliseconds


class ControlFlow(Exception):
    """The root of Retry, Snooze and Bury."""


class Retry(ControlFlow):
    """Fail this attempt and try again after a delay; without one, after the task's back-off."""

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__(delay)
        self.delay = None if delay is None else milliseconds(delay, "delay")


class Snooze(ControlFlow):
    """Come back after a delay without using an attempt."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = milliseconds(delay, "delay")


class Bury(ControlFlow):
    """Make the job dead, without more attempts."""

    def __init__(self, reason: str = "buried") -> None:
        super().__init__(reason)
        self.reason = reason if isinstance(reason, str) else type(reason).__name__
