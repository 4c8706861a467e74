"""Train a configuration on random tokens for some steps, and record them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from llm_trainer.measure.configuration import MeasuredConfig
from llm_trainer.measure.recorder import OperatorRecorder
from llm_trainer.models import TransformerLM
from llm_trainer.training.make_engine import make_engine

SEED = 20_240_229


def random_tokens(config: MeasuredConfig, steps: int) -> DataLoader[Any]:
    """Return a loader of random samples; values of tokens do not change the time of a dense model."""
    run = config.run
    generator = torch.Generator().manual_seed(SEED)
    shape = (run.global_batch_size * steps, run.model.sequence_length)
    tokens = torch.randint(run.model.vocab_size, shape, generator=generator)
    return DataLoader(TensorDataset(tokens), batch_size=run.micro_batch_size, drop_last=True)


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
            log_every_n_steps=recorder.num_steps,
            description=description,
        )
        engine.add_callback(recorder)
        model = TransformerLM(config.model)
        engine.fit(model, engine.make_optimizer(model), random_tokens(config, recorder.num_steps))
