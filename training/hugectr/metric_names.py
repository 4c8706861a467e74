"""Names of evaluation metrics, with thresholds, as a configuration writes them: AUC, AUC:0.8025, AverageLoss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hugectr.exceptions import HugeCtrError

AUC, AVERAGE_LOSS = "AUC", "AverageLoss"
NAMES = (AUC, AVERAGE_LOSS)


class MetricSpec(NamedTuple):
    """A metric, and the value at which training has reached its aim, if any."""

    name: str
    threshold: float | None = None

    def is_reached(self, value: float) -> bool:
        """Return whether the aim is reached: AUC at or above it, AverageLoss at or below it."""
        if self.threshold is None:
            return False
        return value >= self.threshold if self.name == AUC else value <= self.threshold


def parse_metrics(names: Sequence[str]) -> tuple[MetricSpec, ...]:
    """Read the names.

    Raises:
        HugeCtrError: a name is unknown or twice there, or its threshold is no number.
    """
    if isinstance(names, str):
        raise HugeCtrError(f"eval_metrics is {names!r}; expected a list, such as ['{names}']")
    if not isinstance(names, Sequence):
        raise HugeCtrError(f"eval_metrics is {names!r}; expected a list, such as ['AUC']")
    specs: list[MetricSpec] = []
    for text in names:
        name, separator, threshold = str(text).partition(":")
        if name not in NAMES or name in {spec.name for spec in specs}:
            raise HugeCtrError(f"eval_metrics has {text!r}; expected {' or '.join(NAMES)}, each once")
        try:
            specs.append(MetricSpec(name, float(threshold) if separator else None))
        except ValueError:
            raise HugeCtrError(f"eval_metrics has {text!r}; expected a number behind the colon") from None
    return tuple(specs)
