"""A small model, its tokenizer and its samples, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from llm_trainer.config import ModelConfig, TrainingConfig
from llm_trainer.data import LanguageModelingDataset
from llm_trainer.models import TransformerLM
from llm_trainer.tokenizer import BPETokenizer

TEXT = " ".join(f"{number} squared is {number * number}." for number in range(400))
SEQUENCE = 32


def tokenizer() -> BPETokenizer:
    """Return a tokenizer of TEXT."""
    trained = BPETokenizer()
    trained.train([TEXT], vocab_size=300)
    return trained


def model(**changes: Any) -> TransformerLM:
    """Return a model with the same weights each time."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 300, "d_model": 32, "n_heads": 2, "n_layers": 2, "d_ff": 64, "max_seq_len": SEQUENCE,
    }  # fmt: skip
    return TransformerLM(ModelConfig(**{**settings, **changes}))


def training_config(folder: Path, **changes: Any) -> TrainingConfig:
    """Return a short training in float32 that writes to a folder."""
    settings: dict[str, Any] = {
        "batch_size": 8, "learning_rate": 3e-3, "num_epochs": 2, "warmup_steps": 2, "use_amp": False, "eval_steps": 5,
        "save_steps": 4, "logging_steps": 3, "report_to": [], "checkpoint_dir": str(folder), "seed": 1,
    }  # fmt: skip
    return TrainingConfig(**{**settings, **changes})


def dataset(text: str = TEXT, of: BPETokenizer | None = None) -> LanguageModelingDataset:
    """Return packed samples."""
    return LanguageModelingDataset([text], of or tokenizer(), SEQUENCE)
