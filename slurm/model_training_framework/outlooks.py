"""What the launcher asks about an experiment, answered from its prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from model_training_framework.config import ConfigurationError, ExperimentConfig
from model_training_framework.config.fields import AUTO
from model_training_framework.prediction import ExperimentPrediction, time_limit_s, try_predict
from model_training_framework.slurm import Outlook
from model_training_framework.utils import Error, Result


class Outlooks:
    """Answers the launcher from predictions; every experiment is predicted once."""

    def __init__(self, project_root: Path) -> None:
        """Take the folder that files in a ``prediction`` section are relative to."""
        self._project_root = project_root
        self._known: dict[str, tuple[ExperimentConfig, Result[ExperimentPrediction, str]]] = {}

    def __call__(self, config: ExperimentConfig) -> Outlook:
        """Return time limit, refusal and prediction of an experiment, or why there is no limit."""
        answer = self._answer(config)
        if isinstance(answer, Error):
            return Outlook(why_no_limit=answer.error.rstrip("."))
        outlook = Outlook(refusal=answer.value.refusal, predicted=answer.value.to_dict())
        if config.slurm is None or config.slurm.time_limit != AUTO:
            return outlook
        try:
            return replace(outlook, time_limit_s=float(time_limit_s(config, answer.value)))
        except ConfigurationError as error:
            return replace(outlook, why_no_limit=str(error))

    def forecast(self, config: ExperimentConfig) -> ExperimentPrediction | None:
        """Return the prediction of an experiment; None where there is none."""
        answer = self._answer(config)
        return None if isinstance(answer, Error) else answer.value

    def why_not(self, config: ExperimentConfig) -> str | None:
        """Return why an experiment cannot be predicted; None where it can."""
        answer = self._answer(config)
        return f"not predicted: {answer.error}" if isinstance(answer, Error) else None

    def _answer(self, config: ExperimentConfig) -> Result[ExperimentPrediction, str]:
        """Return prediction or reason; of the same experiment only once."""
        known, answer = self._known.get(config.experiment_name, (None, None))
        if answer is None or known is not config:
            answer = try_predict(config, self._project_root)
            self._known[config.experiment_name] = (config, answer)
        return answer
