"""Unfused attention: softmax over the keys."""

from predictor.core.costs.streams import over_scores

OPERATOR = over_scores(
    "softmax", passes=(2, 3), source="one read and one write of every score; backward reads two and writes one"
)
