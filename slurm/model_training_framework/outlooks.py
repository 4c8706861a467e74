"""What is known of experiments before they run, each predicted once."""

from __future__ import annotations

from typing import Any

from model_training_framework.config import ConfigurationError, ExperimentConfig
from model_training_framework.prediction import ExperimentPrediction, predict_experiment
from model_training_framework.slurm import Outlook

ABOUT_NO_PREDICTION = ("experiment_name", "description", "tags", "created_by", "created_at", "seed")


class Outlooks:
    """Answers the launcher's question about an experiment from its prediction.

    Experiments that differ in nothing that a prediction reads share one.
    """

    def __init__(self, refuses: bool) -> None:
        """Begin with nothing predicted.

        Args:
            refuses: an experiment that does not fit into the predicted GPU's memory is refused. What runs here runs on
                another device than the predicted one.
        """
        self._refuses = refuses
        self._answers: dict[str, ExperimentPrediction | str] = {}

    def __call__(self, config: ExperimentConfig) -> Outlook:
        """Return time limit, refusal and prediction of an experiment."""
        forecast = self.forecast(config)
        if forecast is None:
            return Outlook()
        refusal = forecast.refusal if self._refuses else None
        return Outlook(forecast.time_limit_s, refusal, forecast.to_dict())
