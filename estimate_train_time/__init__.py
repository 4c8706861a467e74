"""The documented Python interface of estimate-train-time; everything behind it lives in ``predictor``."""

from predictor import __version__
from predictor.core.predict.documented import Predictor, one_batch_predict

__all__ = ["Predictor", "__version__", "one_batch_predict"]
