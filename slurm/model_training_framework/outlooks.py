"""What the launcher asks about an experiment, answered from its prediction."""

from __future__ import annotations

from pathlib import Path

from model_training_framework.config import ConfigurationError, ExperimentConfig
from model_training_framework.config.fields import AUTO
from model_training_framework.prediction import ExperimentPrediction, time_limit_s, try_predict
from model_training_framework.slurm import JobSubmissionError, Outlook
from model_training_framework.utils import Error, Result


class Outlooks:
    """Answers the launcher from predictions; every experiment is predicted once."""

    def __init__(self, project_root: Path, refuses: bool) -> None:
        """Begin.

        Args:
            project_root: folder that files in a ``prediction`` section are relative to.
            refuses: refuse what is predicted not to fit into the GPU's memory. What runs on this machine runs on
                another device than the predicted one.
        """
        self._project_root = project_root
        self._refuses = refuses
        self._known: dict[str, tuple[ExperimentConfig, Result[ExperimentPrediction, str]]] = {}

    def __call__(self, config: ExperimentConfig) -> Outlook:
        """Return time limit, refusal and prediction of an experiment; nothing of one that cannot be predicted.

        Raises:
            JobSubmissionError: its time limit is to be predicted and cannot be; the message says why.
        """
        is_limit_predicted = config.slurm is not None and config.slurm.time_limit == AUTO
        found = self._found(config)
        if isinstance(found, Error):
            if is_limit_predicted:
                reason = found.error.rstrip(".")
                raise JobSubmissionError(f'slurm.time_limit is auto: {reason}; or give a limit, such as "24:00:00"')
            return Outlook()
        try:
            limit_s = float(time_limit_s(config, found.value)) if is_limit_predicted else None
        except ConfigurationError as error:
            raise JobSubmissionError(f"slurm.time_limit is auto: {error}") from error
        return Outlook(limit_s, found.value.refusal if self._refuses else None, found.value.to_dict())

    def forecast(self, config: ExperimentConfig) -> ExperimentPrediction | None:
        """Return the prediction of an experiment; None where there is none."""
        found = self._found(config)
        return None if isinstance(found, Error) else found.value

    def why_not(self, config: ExperimentConfig) -> str | None:
        """Return why an experiment cannot be predicted; None where it can."""
        found = self._found(config)
        return f"not predicted: {found.error}" if isinstance(found, Error) else None

    def _found(self, config: ExperimentConfig) -> Result[ExperimentPrediction, str]:
        """Return prediction or reason; of the same experiment only once."""
        known, found = self._known.get(config.experiment_name, (None, None))
        if found is None or known is not config:
            found = try_predict(config, self._project_root)
            self._known[config.experiment_name] = (config, found)
        return found
