"""Train a configuration on random tokens for some steps, and record them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from llm_trainer.measure.configuration import MeasuredConfig
from llm_trainer.models import TransformerLM
from llm_trainer.training.make_engine import make_engine
from model_training_framework.trainer.operator_recorder import OperatorRecorder
from predictor.core.workload.run import TrainingRun

SEED = 20_240_229


class RandomTokens:
    """Random samples; values of tokens do not change the time of a dense model."""

    def __init__(self, samples: int, length: int, vocab_size: int) -> None:
        """Draw (samples, length) tokens."""
        self.tokens = torch.randint(vocab_size, (samples, length), generator=torch.Generator().manual_seed(SEED))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample."""
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def loader(run: TrainingRun, steps: int) -> DataLoader[Any]:
    """Return the micro-batches of so many steps of all replicas."""
    samples = RandomTokens(run.global_batch_size * steps, run.model.sequence_length, run.model.vocab_size)
    return DataLoader(samples, batch_size=run.micro_batch_size, drop_last=True)


def run_and_record(
    config: MeasuredConfig, recorder: OperatorRecorder, out: Path, device: str, description: dict[str, Any]
) -> None:
    """Train for as many steps as the recorder wants; it writes its records below ``out``.

    Args:
        config: of the run.
        recorder: times and profiles the steps.
        out: folder of the record.
        device: cpu, cuda, or auto for a GPU where there is one.
        description: what the record calls its configuration.

    Raises:
        TrainingError: the layout does not fit the processes that were started.
        TrainerError: the run cannot begin, or the record cannot be written.
    """
    torch.manual_seed(SEED)
    with tempfile.TemporaryDirectory(prefix="measured-run-") as checkpoints:  # the engine saves at its end
        engine = make_engine(
            config.training,
            out,
            accelerator=device,
            checkpoint_dir=Path(checkpoints),
            deterministic=False,
            resume=False,
            progress_bar=False,
            health=False,
            log_every_n_steps=recorder.num_steps,
            description=description,
        )
        engine.add_callback(recorder)
        model = TransformerLM(config.model)
        engine.fit(model, engine.make_optimizer(model), loader(config.run, recorder.num_steps))
