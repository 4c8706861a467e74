"""``predict``: step time, memory and sources of one training step."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from predictor.core.costs.cost import Cost
from predictor.core.plan.loading import Loaded
from predictor.core.predict.inputs import Config, Configuration, Hardware, change_texts, prepare_on, read
from predictor.core.report import json_document
from predictor.core.report.budget import Bill, prediction_bill
from predictor.core.step import breakdown
from predictor.core.step.breakdown import Answer
from predictor.core.step.memory import GIB, step_memory
from predictor.core.step.memory_verdict import MemoryVerdict, fits_in_memory, memory_verdict_on
from predictor.core.step.prediction import Prediction
from predictor.core.step.prediction import predict as predict_step
from predictor.core.workload.run import TrainingRun

if TYPE_CHECKING:
    from predictor.core.predict.stage import PredictedStage
    from predictor.core.predict.system import LoadedSystem

USUAL_WIDTH = 100


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepPrediction:
    """One predicted training step.

    Attributes:
        name: of the configuration and its system, with changes of the hardware.
        configuration: as it was given.
        loaded: its run on its published system.
        prediction: stages, timeline and costs of the step.
    """

    name: str
    configuration: Configuration
    loaded: Loaded
    prediction: Prediction

    @property
    def step(self) -> Cost:
        """Return the step: ``us``, its 90 % interval ``low_us`` to ``high_us``, and its weakest ``source``."""
        return self.prediction.step

    @property
    def run(self) -> TrainingRun:
        """Return model, layout and training as they were predicted, defaults included."""
        return self.loaded.run

    @property
    def system(self) -> str:
        """Return the name of the system."""
        return self.loaded.system.name

    @property
    def tokens_per_second(self) -> float:
        """Return tokens per second of the whole run."""
        return self.prediction.tokens_per_second

    @property
    def mfu(self) -> float:
        """Return the model FLOP/s utilisation, between 0 and 1; recomputation is not counted."""
        return self.prediction.mfu

    @property
    def critical_stage(self) -> int:
        """Return the stage, from 0, that finishes the step."""
        return self.prediction.critical_stage

    @property
    def stages(self) -> tuple[PredictedStage, ...]:
        """Return every pipeline stage with its parts of the step and its memory."""
        from predictor.core.predict.stage import predicted_stages  # only when needed, for a fast start

        return predicted_stages(self.prediction, self.loaded.system)

    @property
    def memory_gib(self) -> float:
        """Return the memory of the fullest GPU, in GiB (2³⁰ bytes)."""
        return max(memory.total for memory in step_memory(self.prediction.tasks)) / GIB

    @property
    def fit(self) -> MemoryVerdict | None:
        """Return whether every stage fits, may not, or does not; None where the GPU's memory is not known."""
        return memory_verdict_on(self.memory_gib * GIB, self.loaded.system)

    @property
    def fits(self) -> bool | None:
        """Return whether every stage fits; None where that cannot be told, or the GPU's memory is not known."""
        return fits_in_memory(self.fit)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return time and source of each operator and collective, the longest first."""
        return tuple(breakdown.answers(self.prediction, self.loaded.system))

    @property
    def sources(self) -> dict[str, int]:
        """Return the number of ``answers`` by source: interpolated, extrapolated, analytic."""
        return json_document.count_by_source(self.answers)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the caveats of the prediction, a sentence each."""
        return tuple(json_document.notes(self.prediction, self.loaded, list(self.answers)))

    @property
    def modelled_us(self) -> float:
        """Return the modelled time of the step, without what published runs of this kind took beyond it."""
        return self.prediction.modelled_us

    @property
    def headline(self) -> tuple[str, ...]:
        """Return the sentences that stand directly below the time: what speaks against it."""
        from predictor.core.report.text import headline  # only when needed, for a fast start

        return tuple(headline(self.prediction, self.loaded.system))

    @property
    def budget(self) -> Bill:
        """Return hours, energy and price of the training that the configuration's budget asks for, or of one step."""
        return prediction_bill(self.prediction, self.loaded)

    def on(
        self, system: str | PathLike[str] | LoadedSystem | None = None, hardware: Hardware | None = None
    ) -> StepPrediction:
        """Predict the same configuration on another system or changed hardware; arguments and errors as ``predict``.

        It starts from the configuration: a system or changes that this prediction was made with do not carry over.
        """
        return _predict(self.configuration, system, hardware)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``predict --json`` prints (docs/json.md)."""
        return json_document.to_json(self.prediction, self.loaded)

    def text(self, width: int = USUAL_WIDTH) -> str:
        """Return the report that ``predict`` prints, wrapped at ``width`` columns."""
        from predictor.core.report.text import render

        return render(self.prediction, self.loaded, width)

    def __str__(self) -> str:
        """Return the report."""
        return self.text()

    def __repr__(self) -> str:
        """Return name and step in a line."""
        step = self.step
        return f"<{self.name}: {step.us:.6g} us, 90 % interval {step.low_us:.6g} to {step.high_us:.6g}>"


def _predict(
    configuration: Configuration,
    system: str | PathLike[str] | LoadedSystem | None,
    hardware: Hardware | None,
) -> StepPrediction:
    named = None
    if system is not None:
        from predictor.core.predict.system import system_name  # only when needed, for a fast start

        named = system_name(system)
    changes = change_texts(hardware)
    loaded = prepare_on(configuration, named, changes)
    name = ", ".join([f"{configuration.name} on {loaded.system.name}", *changes])
    return StepPrediction(name, configuration, loaded, predict_step(loaded.run, loaded.system))


def predict(
    config: Config,
    *,
    system: str | PathLike[str] | LoadedSystem | None = None,
    hardware: Hardware | None = None,
) -> StepPrediction:
    """Predict one training step, that is one parameter update.

    Args:
        config: path of a configuration file, or a mapping with the same keys, in the full or the short form. Folders
            in a file are relative to it, those in a mapping to the current folder.
        system: another published system than the configuration's: a name, a folder, or what ``load_system`` returns,
            whose folder counts; the run's own precision decides what answers.
        hardware: changes as ``whatif --set`` takes them: numbers of the system, {"inter_node_gb_per_s": 50} or "x2"
            for twice as much, and keys of the configuration, {"training.recompute": "full"}; all change together.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        KeyError: a required key is missing.
        ValueError: a value is not allowed, or nothing published answers for it.
    """
    return _predict(read(config), system, hardware)
