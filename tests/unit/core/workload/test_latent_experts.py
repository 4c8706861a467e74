"""Experts in a latent width: products, exchange, copies, parameters and what is kept, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.rows import Module, Role
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe
from predictor.core.workload.tasks import Part
from predictor.core.workload.transformer import LayerKind
from predictor.formats import read_any
from tests.layers import backward_pass, forward_pass, kept_of, parameters_of
from tests.unit.core.workload.test_experts import (
    EXPERTS,
    HELD,
    HIDDEN,
    RANKS,
    ROW_BYTES,
    SPARSE,
    TOKENS,
    TOP_K,
    WIDTH,
    run,
    sent,
)
from tests.unit.core.workload.test_experts import streamed as bytes_of

LATENT = 512
MOE = {"num_experts": EXPERTS, "experts_per_token": TOP_K, "expert_ffn_hidden_size": WIDTH, "load_imbalance": 1.0}
WIDE = run()
NARROW = run(model={"moe": {**MOE, "latent_size": LATENT}})


def split(of: TrainingRun, tensor: int, expert_tensor: int | None = None) -> TrainingRun:
    layout = replace(
        of.layout,
        tensor_parallel_size=tensor,
        data_parallel_size=RANKS // tensor,
        expert_parallel_size=RANKS // tensor,
        expert_tensor_parallel_size=expert_tensor,
    )
    return replace(of, layout=layout, sequence_parallel=True)


def test_products_of_experts_are_narrow_and_two_projections_stand_beside_them() -> None:
    tasks = {task.name: task for task in forward_pass(NARROW, SPARSE).tasks}
    rows = TOKENS * TOP_K // HELD
    assert tasks["expert_up"].shape == (rows, LATENT, 2 * WIDTH)
    assert tasks["expert_down"].shape == (rows, WIDTH, LATENT)
    assert tasks["latent_down_projection"].shape == (TOKENS, HIDDEN, LATENT)
    assert tasks["latent_up_projection"].shape == (TOKENS, LATENT, HIDDEN)
    assert tasks["router_projection"].shape == (TOKENS, HIDDEN, EXPERTS)


def test_tokens_travel_and_are_copied_in_the_latent_width() -> None:
    for layer_pass in (forward_pass, backward_pass):
        assert sent(layer_pass(NARROW, SPARSE)) == sent(layer_pass(WIDE, SPARSE)) * LATENT / HIDDEN
        narrow, wide = (bytes_of(layer_pass(of, SPARSE), "token_permutation") for of in (NARROW, WIDE))
        assert narrow == pytest.approx(wide * LATENT / HIDDEN)


@pytest.mark.parametrize("expert_tensor", [None, 2])
def test_sums_of_routed_tokens_are_narrow(expert_tensor: int | None) -> None:
    """Of four tensor-parallel ranks four or two split an expert, and gather and scatter its tokens."""

    def summed(of: TrainingRun) -> float:
        tasks = forward_pass(split(of, 4, expert_tensor), SPARSE).calls()
        return sum(task.shape[0] * task.times for task in tasks if task.part is Part.TENSOR_PARALLEL)

    shares = 2 * TOP_K * TOKENS // 4 * ROW_BYTES  # a gather and a scatter, told by a rank's share
    assert summed(WIDE) - summed(NARROW) == pytest.approx(shares * (1 - LATENT / HIDDEN))


def test_parameters_and_flops_by_hand() -> None:
    model = NARROW.model
    assert parameters_of(model, SPARSE).routed == EXPERTS * 3 * LATENT * WIDTH
    projections = 2 * HIDDEN * LATENT
    for ranks in (1, 2):  # whole on every tensor-parallel rank
        narrow, wide = (parameters_of(each, SPARSE, ranks).dense for each in (model, WIDE.model))
        assert narrow - wide == projections
    per_token = TOP_K * 3 * WIDTH * (LATENT - HIDDEN) + projections
    gained = model.model_flops_per_token() - WIDE.model.model_flops_per_token()
    assert gained == pytest.approx(6 * model.num_layers * per_token)


def test_biases_of_both_projections_are_parameters() -> None:
    """Megatron-LM builds fc1_latent_proj and fc2_latent_proj with add_bias_linear."""
    biased = run(model={"biases": "ffn", "moe": {**MOE, "latent_size": LATENT}}).model
    wide = run(model={"biases": "ffn"}).model
    gained = parameters_of(biased, SPARSE).dense - parameters_of(wide, SPARSE).dense
    assert gained == 2 * HIDDEN * LATENT + LATENT + HIDDEN


def test_kept_tokens_are_narrow_and_so_are_the_sums_that_are_projected_back() -> None:
    narrow, wide = (kept_of(of, SPARSE) for of in (NARROW, WIDE))
    moved = 2 * TOKENS * (TOP_K * (HIDDEN - LATENT) - LATENT)
    assert wide.of(Role.ROUTED) - narrow.of(Role.ROUTED) == moved
    assert wide.of(Role.INNER, modules=(Module.EXPERTS,)) == narrow.of(Role.INNER, modules=(Module.EXPERTS,)) > 0


def test_projections_run_in_the_recipe_s_precision() -> None:
    low = replace(NARROW, gemm_recipe=GemmRecipe.MXFP8)
    for layer_pass in (forward_pass(low, SPARSE), backward_pass(low, SPARSE)):
        projections = [task for task in layer_pass.tasks if task.name.startswith("latent_")]
        assert [task.operator.computed_in for task in projections] == ["mxfp8", "mxfp8"]


def test_arguments_of_megatron_and_a_latent_width_that_is_none(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"num-layers": 4, "hidden-size": HIDDEN, "num-attention-heads": 16}
    arguments |= {"seq-length": TOKENS, "num-experts": EXPERTS, "moe-router-topk": TOP_K, "moe-ffn-hidden-size": WIDTH}
    arguments |= {"moe-latent-size": LATENT, "micro-batch-size": 1, "vocab-size": 32000, "swiglu": True}
    path = tmp_path / "run.args"
    path.write_text(" ".join(f"--{key}" if value is True else f"--{key} {value}" for key, value in arguments.items()))
    assert read_any(path).content["model"]["moe"] | {"load_imbalance": 1.0} == {**MOE, "latent_size": LATENT}
    with pytest.raises(ConfigError, match="latent_size is 2048; it is a width below hidden_size, 2048"):
        run(model={"moe": {**MOE, "latent_size": HIDDEN}})


def test_dense_layers_have_no_projections() -> None:
    names = {task.name for task in forward_pass(NARROW, LayerKind()).tasks}
    assert not {name for name in names if name.startswith("latent_")}
