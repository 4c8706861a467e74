"""``compare``: predictions side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.predict.inputs import Config, Hardware
from predictor.core.predict.prediction import USUAL_WIDTH, StepPrediction, predict
from predictor.core.predict.system import LoadedSystem
from predictor.core.report import comparison
from predictor.core.report.comparison import Compared

Systems = str | PathLike[str] | LoadedSystem | Sequence[str | PathLike[str] | LoadedSystem]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """Predictions side by side; differences are against the first.

    Attributes:
        names: of the predictions.
    """

    predictions: tuple[StepPrediction, ...]
    names: tuple[str, ...]

    def _compared(self) -> list[Compared]:
        named = zip(self.names, self.predictions, strict=True)
        return [Compared(name, prediction.prediction, prediction.loaded) for name, prediction in named]

    def to_dict(self) -> dict[str, Any]:
        """Return what ``compare --json`` prints."""
        return comparison.to_json(self._compared())

    def text(self, width: int = USUAL_WIDTH) -> str:
        """Return the table that ``compare`` prints, its notes for so many columns."""
        return comparison.render(self._compared(), width)

    def __str__(self) -> str:
        """Return the table."""
        return self.text()

    def __repr__(self) -> str:
        """Return the names."""
        return f"<comparison of {'; '.join(self.names)}>"


def compare(
    configs: Iterable[Config | StepPrediction],
    *,
    systems: Systems = (),
    hardware: Hardware | None = None,
    names: Iterable[str] | None = None,
) -> Comparison:
    """Set predictions side by side.

    Args:
        configs: what ``predict`` takes or returns, two or more, or one and other systems.
        systems: each configuration is predicted on these too, each a name, a folder or what ``load_system`` returns.
        hardware: changes of every configuration, as ``predict`` takes them; predictions are kept as they are.
        names: of all predictions; by default configuration and system.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: a file does not parse.
        KeyError: a required key is missing.
        ValueError: there is nothing to compare with, names are too few or too many, or ``predict`` raises it.
    """
    if isinstance(configs, str | PathLike | dict | StepPrediction):
        configs = [configs]
    others = [systems] if isinstance(systems, str | PathLike | LoadedSystem) else list(systems)
    predictions: list[StepPrediction] = []
    for config in configs:
        first = config if isinstance(config, StepPrediction) else predict(config, hardware=hardware)
        predictions += [first, *(first.on(system, hardware) for system in others)]
    if len(predictions) < 2:
        raise ConfigError("compare needs two configurations, or one and a --system to set beside its own")
    called = tuple(prediction.name for prediction in predictions) if names is None else tuple(names)
    if len(called) != len(predictions):
        raise ConfigError(f"names has {len(called)} values; expected one for each of {len(predictions)} predictions")
    return Comparison(tuple(predictions), called)
