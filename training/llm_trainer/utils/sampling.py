"""Transforms of logits before sampling: repetition penalty, temperature, top-k, top-p."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llm_trainer.exceptions import GenerationError


def sample_top_k(logits: Tensor, k: int) -> Tensor:
    """Return logits of which the k largest are left, the others -inf; what equals the kth stays too.

    Args:
        logits: (…, vocabulary).
        k: at least 1; as many as the vocabulary or more change nothing.

    Raises:
        GenerationError: k is less than 1.

    Source: Fan et al. 2018, "Hierarchical Neural Story Generation", section 5.
    """
    check_top_k(k)
    if k >= logits.shape[-1]:
        return logits
    smallest = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest, -math.inf)


def sample_top_p(logits: Tensor, p: float) -> Tensor:
    """Return logits of the fewest most probable tokens whose probabilities sum to p or more, the others -inf.

    Args:
        logits: (…, vocabulary).
        p: 0 < p ≤ 1; the most probable token always stays.

    Raises:
        GenerationError: p is out of range.

    Source: Holtzman et al. 2020, arXiv:1904.09751, section 3.1.
    """
    check_top_p(p)
    if p == 1.0:
        return logits
    ordered, places = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.float().softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # of the tokens that are more probable
    is_left_out = before >= p
    is_left_out[..., 0] = False
    return logits.masked_fill(is_left_out.scatter(-1, places, is_left_out), -math.inf)


def apply_repetition_penalty(logits: Tensor, input_ids: Tensor, penalty: float) -> Tensor:
    """Return logits in which the tokens of ``input_ids`` are less likely: positive ones divided, others multiplied.

    Args:
        logits: (batch, vocabulary) or (vocabulary,).
        input_ids: (batch, tokens) or (tokens,); how often a token occurs does not matter.
        penalty: more than 1 makes repetitions less likely; 1 changes nothing.

    Raises:
        GenerationError: the penalty is not more than 0.

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1, and for negative logits its reference code.
    """
    check_positive("repetition_penalty", penalty)
    if penalty == 1.0:
        return logits
    seen = logits.gather(-1, input_ids)
    return logits.scatter(-1, input_ids, torch.where(seen > 0, seen / penalty, seen * penalty))


def create_causal_mask(size: int, device: torch.device | str | None = None) -> Tensor:
    """Return (size, size), True where the query of a row may see the key of a column: itself and those before.

    Raises:
        GenerationError: size is less than 1.
    """
    if type(size) is not int or size < 1:
        raise GenerationError(f"size is {size!r}; it must be at least 1")
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


def check_top_k(k: object) -> None:
    """Raise a GenerationError unless a top-k is allowed."""
    if type(k) is not int or k < 1:
        raise GenerationError(
            f"top_k is {k!r}; it must be a whole number of at least 1, or None for the whole vocabulary"
        )


def check_top_p(p: object) -> None:
    """Raise a GenerationError unless a top-p is allowed."""
    if not isinstance(p, int | float) or not 0.0 < p <= 1.0:
        raise GenerationError(f"top_p is {p!r}; it must be more than 0 and at most 1")


def check_positive(name: str, value: object) -> None:
    """Raise a GenerationError unless a number is finite and more than 0."""
    if not isinstance(value, int | float) or not 0.0 < value < math.inf:
        raise GenerationError(f"{name} is {value!r}; it must be a number of more than 0")
