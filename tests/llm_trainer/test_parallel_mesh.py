"""Layouts: which ranks and layers they give, and what they refuse, in one line, before any work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from llm_trainer.config import ModelConfig, TrainingConfig
from llm_trainer.exceptions import TrainingError
from llm_trainer.models.layers import Attention, Context
from llm_trainer.models.transformer import IGNORED
from llm_trainer.parallel.mesh import AXES, check_model, layout_of
from llm_trainer.parallel.pipeline import join
from llm_trainer.parallel.tensor import OwnDropout
from predictor.core.workload.layout import RANK_ORDER

PIPELINE = {"pipeline_parallel_size": 2, "gradient_accumulation_steps": 4}
INTERLEAVED = {**PIPELINE, "pipeline_schedule": "interleaved_1f1b", "num_chunks": 2}
ZERO_BUBBLE = {**PIPELINE, "pipeline_schedule": "zero_bubble_h1"}


def test_ranks_are_in_the_predictors_order() -> None:
    short = {"tp": "tensor", "dp": "data", "pp": "pipeline"}
    assert [short[name] for name in reversed(RANK_ORDER) if name in short] == list(AXES)


@pytest.mark.parametrize(
    ("num_layers", "training", "layers"),
    [
        (5, PIPELINE, [range(3), range(3, 5)]),
        (4, INTERLEAVED, [range(1), range(1, 2), range(2, 3), range(3, 4)]),
        (7, {}, [range(7)]),
    ],
)
def test_every_layer_is_on_one_stage(num_layers: int, training: dict[str, Any], layers: list[range]) -> None:
    layout = layout_of(TrainingConfig(**training), 4)
    assert layout.layers_of(num_layers) == layers
    assert layout.pipeline_parallel_size * layout.data_parallel_size * layout.tensor_parallel_size == 4


@pytest.mark.parametrize(
    ("world_size", "training", "message"),
    [
        (
            3,
            {"tensor_parallel_size": 2},
            "the run has 3 ranks; .* is 2 × 1 and must divide them. Start 2 or a multiple",
        ),
        (4, {"tensor_parallel_size": 2, "zero_stage": 1}, "zero_stage is 1 with tensor_.* Try zero_stage 0, 2 or 3"),
        (2, {**PIPELINE, "gradient_accumulation_steps": 1}, "steps is 1; a pipeline of 2 ranks .* Try 2 or more"),
        (
            2,
            {**INTERLEAVED, "gradient_accumulation_steps": 3},
            "steps 3 and num_chunks 2; it needs a multiple .* 2 or 4",
        ),
        (2, {**ZERO_BUBBLE, "gradient_accumulation_steps": 5}, "runs them in 2 equal rounds. Try 4"),
        (2, {**ZERO_BUBBLE, "num_chunks": 2}, "it holds one model chunk per stage; interleaved_1f1b takes several"),
        (2, {**ZERO_BUBBLE, "compile_model": True}, "compile_model is true with .* Try compile_model false, or 1f1b"),
        (4, {**ZERO_BUBBLE, "zero_stage": 3}, "zero_stage is 3 with .* Try zero_stage 2, or 1f1b"),
    ],
)
def test_layout_that_does_not_fit_its_ranks_is_refused(world_size: int, training: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message) as caught:
        layout_of(TrainingConfig(**training), world_size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        ({"n_heads": 3, "d_model": 48}, {"tensor_parallel_size": 2}, "is 2; it must divide n_heads, 3. Try 1 or 3"),
        ({"n_kv_heads": 3}, {"tensor_parallel_size": 2}, "is 2; it must divide n_kv_heads, 3. Try 1 or 3"),
        ({"vocab_size": 50257}, {"tensor_parallel_size": 2}, "divide vocab_size, 50257. Pad the vocabulary to 50258"),
        ({"n_layers": 1}, PIPELINE, "is 2 × 1; every stage needs one .* n_layers is 1. Try up to 1 stages"),
        ({"n_layers": 3}, INTERLEAVED, "is 2 × 2; every stage needs one .* n_layers is 3. Try up to 3 stages"),
    ],
)
def test_layout_that_does_not_fit_its_model_is_refused(
    model: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    layout = layout_of(TrainingConfig(**training), 2)
    with pytest.raises(TrainingError, match=message) as caught:
        check_model(layout, ModelConfig(**model))
    assert "\n" not in str(caught.value)


def test_micro_batches_are_filled_up_without_targets() -> None:
    whole = {name: torch.arange(1, 13).view(2, 6) for name in ("input_ids", "labels")}
    short = {name: tensor[:1, :4] for name, tensor in whole.items()} | {"attention_mask": torch.ones(1, 4)}
    joined = join([whole, short], 3)
    assert list(joined) == ["input_ids", "labels", "attention_mask"]
    assert {tuple(tensor.shape) for tensor in joined.values()} == {(6, 6)}
    labels = joined["labels"]
    assert torch.equal(labels[:2], whole["labels"])
    assert torch.equal(labels[2], torch.tensor([1, 2, 3, 4, IGNORED, IGNORED]))
    assert bool((labels[3:] == IGNORED).all())
    assert joined["attention_mask"].sum(1).tolist() == [6, 6, 4, 0, 4, 0]


def test_tensor_ranks_drop_other_attention_weights_and_agree_otherwise() -> None:
    config = ModelConfig(vocab_size=8, d_model=16, n_heads=2, n_layers=1, d_ff=16, attention_dropout=0.5)
    attention = Attention(config, "0")
    hidden = torch.randn(1, 8, 16)

    def outputs(rank: int | None) -> tuple[Any, Any, Any]:
        """Return two calls' outputs, and what is drawn between them."""
        handles = [] if rank is None else OwnDropout(attention, rank).handles
        torch.manual_seed(3)
        first = attention(hidden, Context())
        between = nn.functional.dropout(torch.ones(64))
        second = attention(hidden, Context())
        for handle in handles:
            handle.remove()
        return first, between, second

    first, again, other = outputs(0), outputs(0), outputs(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[2], other[2])
    assert not torch.equal(first[0], first[2])
    assert torch.equal(first[1], other[1])
