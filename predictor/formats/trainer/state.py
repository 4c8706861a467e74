"""Read a Trainer's trainer_state.json."""

from predictor.formats.trainer.reader import read_state as read

__all__ = ["read"]
