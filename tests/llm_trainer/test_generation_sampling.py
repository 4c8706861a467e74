"""Filters of logits, exactly: which tokens are left, and with which probabilities they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_trainer.exceptions import GenerationError
from llm_trainer.utils.generation import apply_repetition_penalty, create_causal_mask, sample_top_k, sample_top_p

LOGITS = st.lists(st.integers(-20, 20), min_size=1, max_size=12).map(lambda values: torch.tensor(values) / 4)


@given(logits=LOGITS, k=st.integers(1, 15))
def test_top_k_leaves_the_k_largest_and_what_equals_the_kth(logits: torch.Tensor, k: int) -> None:
    smallest = sorted(logits.tolist(), reverse=True)[:k][-1]
    expected = [value if value >= smallest else -math.inf for value in logits.tolist()]
    assert sample_top_k(logits, k).tolist() == expected
    assert sample_top_k(torch.stack([logits, logits.flip(0)]), k).tolist() == [expected, expected[::-1]]


@given(weights=st.permutations([1, 2, 3, 5, 7, 11, 17, 18]), percent=st.integers(1, 99))
def test_top_p_leaves_the_fewest_tokens_that_reach_p(weights: list[int], percent: int) -> None:
    reached, kept = Fraction(0), set[int]()
    for weight in sorted(weights, reverse=True):
        kept.add(weight)
        reached += Fraction(weight, sum(weights))
        if reached > Fraction(percent, 100):  # sums are 64ths, none of which is a whole percentage but 25, 50 and 75
            break
    if any(Fraction(percent, 100) == Fraction(sum(sorted(weights)[n:]), 64) for n in range(8)):
        return
    logits = torch.tensor(weights).float().log()
    left = sample_top_p(logits, percent / 100)
    assert {weight for weight, value in zip(weights, left.tolist(), strict=True) if value > -math.inf} == kept
    expected = torch.tensor([weight / sum(kept) if weight in kept else 0.0 for weight in weights])
    torch.testing.assert_close(left.softmax(dim=-1), expected)


def test_top_p_by_hand() -> None:
    logits = torch.tensor([0.125, 0.5, 0.25, 0.125]).log()
    for p, kept in ((0.5, [1]), (0.51, [1, 2]), (0.75, [1, 2]), (0.8, [0, 1, 2]), (1.0, [0, 1, 2, 3]), (1e-9, [1])):
        left = sample_top_p(logits.repeat(2, 1), p)
        assert left.isfinite().nonzero().tolist() == [[row, token] for row in (0, 1) for token in kept]


def test_a_repetition_is_penalised_once_whatever_its_sign() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0], [2.0, -2.0, 1.0, 0.0]])
    ids = torch.tensor([[0, 0, 1], [2, 2, 3]])
    expected = [[1.0, -4.0, 1.0, 0.0], [2.0, -2.0, 0.5, 0.0]]
    assert apply_repetition_penalty(logits, ids, 2.0).tolist() == expected
    assert apply_repetition_penalty(logits[0], ids[0], 2.0).tolist() == expected[0]
    assert logits.tolist() == [[2.0, -2.0, 1.0, 0.0]] * 2
    assert apply_repetition_penalty(logits, ids, 1.0) is logits


def test_filters_equal_those_of_transformers() -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    torch.manual_seed(0)
    logits, ids = torch.randn(5, 40), torch.randint(40, (5, 9))
    assert sample_top_k(logits, 7).equal(processors.TopKLogitsWarper(7)(ids, logits))
    assert sample_top_p(logits, 0.6).equal(processors.TopPLogitsWarper(0.6)(ids, logits))
    assert apply_repetition_penalty(logits, ids, 1.3).equal(
        processors.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits)
    )


def test_a_query_sees_itself_and_what_is_before() -> None:
    assert create_causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda logits: sample_top_k(logits, 0), "top_k is 0; it must be a whole number of at least 1"),
        (lambda logits: sample_top_k(logits, True), "top_k is True"),
        (lambda logits: sample_top_p(logits, 0.0), r"top_p is 0\.0; it must be more than 0 and at most 1"),
        (lambda logits: sample_top_p(logits, math.nan), "top_p is nan"),
        (lambda logits: apply_repetition_penalty(logits, logits.long(), 0), "repetition_penalty is 0; it must be"),
        (lambda logits: create_causal_mask(0), "size is 0; it must be at least 1"),
    ],
)
def test_bad_values_are_one_line(call: Callable[[torch.Tensor], object], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        call(torch.zeros(4))
