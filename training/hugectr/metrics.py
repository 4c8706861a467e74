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
    """What one evaluation has seen on this rank."""

    def __init__(self, specs: Sequence[MetricSpec]) -> None:
        """Begin with nothing."""
        self.specs = tuple(specs)
        self.clear()

    def clear(self) -> None:
        """Forget all samples."""
        self._predictions: list[torch.Tensor] = []
        self._labels: list[torch.Tensor] = []
        self._loss = 0.0
        self._samples = 0

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
        self._samples += label.shape[0]

    def local(self) -> tuple[Values, Values]:
        """Return this rank's (samples, labels) predictions and labels."""
        if not self._labels:
            return np.zeros((0, 1), np.float32), np.zeros((0, 1), np.float32)
        return torch.cat(self._predictions).numpy(), torch.cat(self._labels).numpy()

    def gathered(self, group: Any, num_ranks: int) -> tuple[Values, Values]:
        """Return all ranks' predictions and labels, batch by batch in the order of ranks; a collective."""
        own = (self._predictions, self._labels)
        if num_ranks == 1:
            return self.local()
        parts: list[Any] = [None] * num_ranks
        distributed.all_gather_object(parts, own, group=group)
        batches = range(len(self._labels))
        predictions = [parts[rank][0][batch] for batch in batches for rank in range(num_ranks)]
        labels = [parts[rank][1][batch] for batch in batches for rank in range(num_ranks)]
        if not labels:
            return self.local()
        return torch.cat(predictions).numpy(), torch.cat(labels).numpy()

    def values(self, predictions: Values, labels: Values, loss: float, samples: int) -> list[tuple[str, float]]:
        """Return the metrics by name, in the order of the specs."""
        return [
            (spec.name, _mean_area(predictions, labels) if spec.name == AUC else loss / max(samples, 1))
            for spec in self.specs
        ]

    def totals(self, group: Any, num_ranks: int) -> tuple[float, int]:
        """Return loss and samples over all ranks; a collective."""
        totals = torch.tensor([self._loss, float(self._samples)], dtype=torch.float64)
        if num_ranks > 1:
            parts: list[Any] = [None] * num_ranks
            distributed.all_gather_object(parts, totals.tolist(), group=group)
            totals = torch.tensor(parts, dtype=torch.float64).sum(dim=0)
        return float(totals[0]), int(totals[1])


def _mean_area(predictions: Values, labels: Values) -> float:
    """Return the mean over labels of the area of those samples that have the label."""
    areas = []
    for column in range(labels.shape[1]):
        has_label = labels[:, column] >= NOT_LABELLED_BELOW
        areas.append(area_under_curve(predictions[has_label, column], labels[has_label, column]))
    return float(np.mean(areas))
