"""Metrics as Prometheus reads them: the text format, version 0.0.4."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its values."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    values: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)  #: suffix, labels, value

    def add(self, value: float, suffix: str = "", **labels: str) -> None:
        self.values.append((suffix, labels, value))


def text_of(families: Iterable[Family]) -> str:
    lines: list[str] = []
    for family in families:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        lines += [f"{family.name}{suffix}{_labels(labels)} {value:.16g}" for suffix, labels, value in family.values]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
