"""Job script of the other examples: train a small language model as an experiment's config.yaml says.

    python train.py --config experiments/NAME/config.yaml

Killed, preempted or out of time, the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from model_training_framework.config import ConfigurationManager, ExperimentConfig
from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig

VOCABULARY = 64
SAMPLES = 512


class LanguageModel(nn.Module):
    """Tokens (batch, sequence) to logits (batch, sequence, vocabulary), through torch's own encoder layers."""

    def __init__(self, hidden_size: int, num_layers: int, num_heads: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden_size)
        layer = nn.TransformerEncoderLayer(hidden_size, num_heads, 4 * hidden_size, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(hidden_size, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of every position's next token."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens), mask=mask, is_causal=True))
        return logits


class LanguageModelTrainer(GenericTrainer):
    """Trains it on sequences of tokens."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the mean cross entropy of the next tokens."""
        (tokens,) = batch
        logits = self.model(tokens[:, :-1])
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())}

    validation_step = training_step


def samples(count: int, length: int, seed: int) -> TensorDataset:
    """Return sequences in which every token is the one before plus a step that is the sequence's own."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(VOCABULARY, (count, 1), generator=generator)
    steps = torch.randint(1, 5, (count, 1), generator=generator)
    return TensorDataset((starts + steps * torch.arange(length)) % VOCABULARY)


def train(config: ExperimentConfig, experiment_dir: Path) -> None:
    """Train as the experiment says; what is written goes to its folder."""
    model_config, training = config.model, config.training
    torch.manual_seed(config.seed or 0)  # the same weights at every start
    model = LanguageModel(
        model_config.hidden_size or 64, model_config.num_layers or 2, model_config.num_heads or 4, model_config.dropout
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), training.learning_rate, config.optimizer.betas, config.optimizer.eps,
        config.optimizer.weight_decay,
    )  # fmt: skip
    length = training.sequence_length or 16
    count = config.data.num_samples or SAMPLES
    loader = DataLoader(samples(count, length, seed=1), training.batch_size, shuffle=True)
    validation = DataLoader(samples(64, length, seed=2), training.batch_size)
    trainer = LanguageModelTrainer(GenericTrainerConfig.from_experiment(config, experiment_dir))
    trainer.fit(model, optimizer, loader, validation)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Train a small language model.")
    parser.add_argument("--config", type=Path, required=True, help="configuration of the experiment")
    path = parser.parse_args().config
    content = ConfigurationManager(path.parent).load_config(path)
    torch.set_num_threads(1)
    train(ExperimentConfig.from_dict(content), path.parent)


if __name__ == "__main__":
    main()
