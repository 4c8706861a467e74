"""Metrics of an evaluation, exact over all samples of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed

from hugectr.dense.losses import NOT_LABELLED_BELOW
from hugectr.metric_names import AUC, MetricSpec

Values = np.ndarray[Any, np.dtype[Any]]


def area_under_curve(scores: Values, labels: Values) -> float:
    """Return the area under the ROC curve, equal scores counting half; NaN where all labels are alike.

    Args:
        scores: (samples,).
        labels: (samples,), positive above 0.5.

    Source: Mann and Whitney 1947; Hanley and McNeil 1982 for its equality with the area.
    """
    positive = np.asarray(labels) > 0.5
    num_positive = int(positive.sum())
    num_negative = positive.size - num_positive
    if not num_positive or not num_negative:
        return float("nan")
    _, group = np.unique(scores, return_inverse=True)
    positives = np.bincount(group, weights=positive).astype(np.int64)
    negatives = np.bincount(group, weights=~positive).astype(np.int64)
    below = np.cumsum(negatives) - negatives
    twice = int(np.dot(positives, 2 * below + negatives))
    return twice / (2.0 * num_positive * num_negative)


class Evaluation:
    """What one evaluation has seen on this rank.

    Attributes:
        num_samples: of this rank.
    """

    def __init__(self, specs: Sequence[MetricSpec]) -> None:
        """Begin with nothing."""
        self.specs = tuple(specs)
        self.clear()

    def clear(self) -> None:
        """Forget all samples."""
        self._predictions: list[torch.Tensor] = []
        self._labels: list[torch.Tensor] = []
        self._loss = 0.0
        self.num_samples = 0

    def add(self, predictions: torch.Tensor, label: torch.Tensor, loss: float) -> None:
        """Add a rank's share of a batch.

        Args:
            predictions: (samples, labels).
            label: (samples, labels).
            loss: summed over the samples.
        """
        self._predictions.append(predictions.cpu())
        self._labels.append(label.cpu())
        self._loss += loss
        self.num_samples += label.shape[0]

    def local(self) -> tuple[Values, Values]:
        """Return this rank's (samples, labels) predictions and labels."""
        if not self._labels:
            return np.zeros((0, 1), np.float32), np.zeros((0, 1), np.float32)
        return torch.cat(self._predictions).numpy(), torch.cat(self._labels).numpy()

    def gathered(self, group: Any, num_ranks: int) -> tuple[Values, Values]:
        """Return all ranks' predictions and labels, batch by batch in the order of ranks; a collective."""
        if num_ranks == 1 or not self._labels:
            return self.local()
        num_labels = self._labels[0].shape[1]
        own = torch.cat([torch.cat(pair, dim=1) for pair in zip(self._predictions, self._labels, strict=True)])
        parts = [torch.empty_like(own) for _ in range(num_ranks)]
        distributed.all_gather(parts, own, group=group)
        sizes = [len(labels) for labels in self._labels]  # the same on all ranks, which have equal shares
        by_batch = zip(*(part.split(sizes) for part in parts), strict=True)
        every = torch.cat([share for batch in by_batch for share in batch]).numpy()
        return every[:, :-num_labels], every[:, -num_labels:]

    def values(self, predictions: Values, labels: Values, loss: float, samples: int) -> list[tuple[str, float]]:
        """Return the metrics by name, in the order of the specs; NaN where nothing was evaluated."""
        mean = loss / samples if samples else float("nan")
        return [(spec.name, _mean_area(predictions, labels) if spec.name == AUC else mean) for spec in self.specs]

    def totals(self, group: Any, num_ranks: int) -> tuple[float, int]:
        """Return loss and samples over all ranks; a collective."""
        totals = torch.tensor([self._loss, float(self.num_samples)], dtype=torch.float64)
        if num_ranks > 1:
            distributed.all_reduce(totals, group=group)
        return float(totals[0]), int(totals[1])


def _mean_area(predictions: Values, labels: Values) -> float:
    """Return the mean over labels of the area of those samples that have the label."""
    areas = []
    for column in range(labels.shape[1]):
        has_label = labels[:, column] >= NOT_LABELLED_BELOW
        areas.append(area_under_curve(predictions[has_label, column], labels[has_label, column]))
    return float(np.mean(areas))
