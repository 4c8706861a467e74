"""Unfused attention: write a large negative value where the mask forbids attention (masked_fill)."""

from predictor.core.costs.streams import over_scores

OPERATOR = over_scores(
    "attention_mask",
    # Scores read and written; backward the gradient. The mask has a byte per score of a single head, shared by all
    # heads, and is left out.
    passes=(2, 2),
    source="masked_fill reads and writes every score",
)
