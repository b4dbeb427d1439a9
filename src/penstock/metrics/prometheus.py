"""Metrics as Prometheus reads them: the text format, version 0.0.4."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "summary"]
MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with all its values."""

    name: str
    kind: Kind
    help: str
    values: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)  #: suffix, labels, value

    def add(self, value: float, suffix: str = "", **labels: str) -> None:
        self.values.append((suffix, labels, value))


def histogram(family: Metric, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str) -> None:
    """Add a histogram: how many fell below each bound and above the one before, how many above all, and their sum."""
    number = 0
    for bound, count in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), counts, strict=True):
        number += count
        family.add(number, "_bucket", **labels, le=bound)
    family.add(total, "_sum", **labels)
    family.add(number, "_count", **labels)


def text_of(families: Iterable[Metric]) -> str:
    lines: list[str] = []
    for family in families:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        lines += [f"{family.name}{suffix}{_labels(labels)} {value:.16g}" for suffix, labels, value in family.values]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
