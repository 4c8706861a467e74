"""AUC against scikit-learn's, and what an evaluation gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hugectr.metric_names import MetricSpec, parse_metrics
from hugectr.metrics import Evaluation, area_under_curve

roc_auc_score = pytest.importorskip("sklearn.metrics").roc_auc_score


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_area_is_that_of_scikit_learn_with_many_equal_scores(samples: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in samples], np.float32)
    labels = np.array([label for _, label in samples], np.float32)
    if len(set(labels)) < 2:
        assert np.isnan(area_under_curve(scores, labels))
    else:
        assert area_under_curve(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_area_of_many_samples() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(200_000) < 0.1).astype(np.float32)
    scores = (rng.normal(size=labels.size) + labels).astype(np.float32)
    assert area_under_curve(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def evaluated(batches: list[tuple[Any, Any, float]], *names: str) -> list[tuple[str, float]]:
    evaluation = Evaluation(parse_metrics(names))
    for predictions, label, loss in batches:
        evaluation.add(torch.tensor(predictions), torch.tensor(label), loss)
    return evaluation.values(*evaluation.gathered(None, 1), *evaluation.totals(None, 1))


def test_metrics_are_over_all_batches() -> None:
    batches = [([[0.1], [0.9]], [[0.0], [1.0]], 3.0), ([[0.8]], [[0.0]], 6.0)]
    assert evaluated(batches, "AverageLoss", "AUC") == [("AverageLoss", 3.0), ("AUC", 1.0)]


def test_several_labels_have_the_mean_of_their_areas() -> None:
    predictions = [[0.1, 0.3], [0.9, 0.2], [0.5, 0.4]]
    label = [[0.0, 1.0], [1.0, -1.0], [1.0, 0.0]]
    assert evaluated([(predictions, label, 0.0)], "AUC") == [("AUC", 0.5)]


def test_thresholds() -> None:
    area, loss = parse_metrics(["AUC:0.8", "AverageLoss:0.4"])
    assert (area, loss) == (MetricSpec("AUC", 0.8), MetricSpec("AverageLoss", 0.4))
    assert area.is_reached(0.8)
    assert not area.is_reached(0.79)
    assert loss.is_reached(0.4)
    assert not loss.is_reached(0.41)
    assert not MetricSpec("AUC").is_reached(1.0)
