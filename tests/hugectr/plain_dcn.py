"""HugeCTR's DCN as a PyTorch user would write it, for comparisons."""

from __future__ import annotations

import torch
from torch import nn


class CrossLayer(nn.Module):
    """x' = x0 · (x · w) + b + x. Source: Wang et al. 2017, arXiv:1708.05123."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns) / columns**0.5)
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the next vector."""
        return torch.addcmul(x + self.bias, first, (x @ self.weight)[:, None])


class PlainDcn(nn.Module):
    """Cross layers beside two hidden layers; logits of (samples, columns)."""

    def __init__(self, columns: int, hidden: int, cross_layers: int, dropout: float) -> None:
        super().__init__()
        self.cross = nn.ModuleList(CrossLayer(columns) for _ in range(cross_layers))
        self.deep = nn.Sequential(
            nn.Linear(columns, hidden), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout),
        )  # fmt: skip
        self.last = nn.Linear(columns + hidden, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits, (samples,)."""
        crossed = features
        for layer in self.cross:
            crossed = layer(features, crossed)
        logits: torch.Tensor = self.last(torch.cat((self.deep(features), crossed), dim=1))
        return logits[:, 0]
