"""Log lines on stderr, one per event, for people or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from penstock.model.printable import escaped, escaped_json, escaped_lines

_FIELDS: Final = ("job", "task", "attempt")
_LEVEL_NAMES: Final = {"WARNING": "warn"}


def configure_logging(level: str, output: str = "table") -> None:
    """Write what the library and the application log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if output == "json" else TextLines())
    logging.basicConfig(level="INFO" if level == "DEBUG" else level, handlers=[handler], force=True)
    logging.getLogger("penstock").setLevel(level)
    logging.getLogger("penstock.embedded").setLevel("ERROR")  # the command line prints its own note, once


class TextLines(logging.Formatter):
    """Time, level, job and task, message. Control characters are escaped: a line is an event, a traceback follows."""

    def format(self, record: logging.LogRecord) -> str:
        time = f"{datetime.fromtimestamp(record.created):%H:%M:%S.%f}"[:-3]  # noqa: DTZ006  (a person reads it here)
        level = _LEVEL_NAMES.get(record.levelname, record.levelname.lower())
        about = " ".join(str(value) for name in _FIELDS[:2] if (value := getattr(record, name, None)))
        trace = f"\n{escaped_lines(self.formatException(record.exc_info))}" if record.exc_info else ""
        return escaped(f"{time} {level:<5} {about + ': ' if about else ''}{record.getMessage()}") + trace


class JsonLines(logging.Formatter):
    """A JSON object per event."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(event, default=str, ensure_ascii=False))
