"""Simple training: a model, an optimizer, loaders and ``fit``. Run it again and it goes on, or says that it is done.

python slurm/examples/basic_training.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig


def spirals(count: int, seed: int) -> TensorDataset:
    """Return points (x, y) of two spirals and which of them each is on."""
    generator = torch.Generator().manual_seed(seed)
    angle = 4.0 * torch.rand(count, generator=generator) + 0.5
    label = torch.randint(2, (count,), generator=generator)
    turned = angle + torch.pi * label
    points = torch.stack([angle * torch.cos(turned), angle * torch.sin(turned)], dim=1)
    return TensorDataset(points + 0.1 * torch.randn(count, 2, generator=generator), label)


def main(folder: Path) -> None:
    """Train in a folder, which gets checkpoints and steps.jsonl."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=320)
    trainer = GenericTrainer(GenericTrainerConfig(max_epochs=10, devices=1, experiment_dir=folder, seed=0))
    train_loader = DataLoader(spirals(1024, seed=1), batch_size=32, shuffle=True)
    trainer.fit(model, optimizer, train_loader, DataLoader(spirals(256, seed=2), batch_size=64), scheduler)
    print(f"step {trainer.state.global_step}: validation loss {trainer.metrics['val_loss']:.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "basic_training"))
