"""A trainer of one's own: another loss, another metric, and a callback that stops to report.

python slurm/examples/custom_trainer.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig, TrainingCallback


class Autoencoder(nn.Module):
    """Squeezes 16 numbers into 4 and back."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return code and reconstruction of (batch, 16)."""
        code = torch.tanh(self.encoder(inputs))
        return code, self.decoder(code)


class AutoencoderTrainer(GenericTrainer):
    """Reconstruction plus a small price on the code."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the loss and its part, both of which are logged."""
        code, output = self.model(batch[0])
        reconstruction = functional.mse_loss(output, batch[0])
        return {"loss": reconstruction + 1e-3 * code.abs().mean(), "reconstruction": reconstruction.detach()}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the share of variance that is lost."""
        _, output = self.model(batch[0])
        return {"unexplained": functional.mse_loss(output, batch[0]) / batch[0].var()}


class EpochReport(TrainingCallback):
    """Prints a line an epoch, and remembers the best one across restarts."""

    def __init__(self) -> None:
        """Begin without a best epoch."""
        self.best: tuple[float, int] | None = None

    def on_epoch_end(self, trainer: Any, epoch: int, logs: dict[str, Any]) -> None:
        """Compare with the best epoch."""
        current = (float(logs["val_unexplained"]), epoch)
        self.best = min(self.best or current, current)
        print(f"epoch {epoch}: {current[0]:.1%} of the variance unexplained")

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"best": list(self.best) if self.best else None}

    def load_state_dict(self, state: Any) -> None:
        """Take it over."""
        self.best = (float(state["best"][0]), int(state["best"][1])) if state["best"] else None


def main(folder: Path) -> None:
    """Train on points near a four-dimensional plane."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(512, 4, generator=generator) @ torch.randn(4, 16, generator=generator)
    torch.manual_seed(0)
    model = Autoencoder()
    config = GenericTrainerConfig(max_epochs=8, devices=1, experiment_dir=folder, monitor="val_unexplained")
    trainer = AutoencoderTrainer(config)
    report = EpochReport()
    trainer.add_callback(report)
    loader = DataLoader(TensorDataset(points[:448]), batch_size=32, shuffle=True)
    trainer.fit(model, torch.optim.Adam(model.parameters(), 1e-2), loader, DataLoader(TensorDataset(points[448:]), 64))
    assert report.best is not None
    print(f"best epoch {report.best[1]}: {report.best[0]:.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "custom_trainer"))
