"""Experiments' step time, memory, duration and cost, before they run."""

from model_training_framework.prediction.experiment import (
    ExperimentPrediction,
    PredictionError,
    predict_experiment,
    try_predict,
)
from model_training_framework.prediction.time_limit import Margins, TimeLimit, time_limit, time_limit_s

__all__ = [
    "ExperimentPrediction",
    "Margins",
    "PredictionError",
    "TimeLimit",
    "predict_experiment",
    "time_limit",
    "time_limit_s",
    "try_predict",
]
