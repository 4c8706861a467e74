"""Recipes of low precision: which products run in it, what casting adds, what is sent and kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import PublishedError
from predictor.core.blocks.mamba2 import Mamba2
from predictor.core.blocks.mixers import Mixer
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Source
from predictor.core.costs.low_precision import peak_tflop_per_s, speedup, transposes_fp8
from predictor.core.costs.operator import Direction, in_precision
from predictor.core.costs.published import open_system
from predictor.core.plan.loading import prepare
from predictor.core.rows import Role
from predictor.core.step.prediction import predict
from predictor.core.workload.layer import kept_and_recomputed
from predictor.core.workload.low_precision import cast_weights, recipe_of
from predictor.core.workload.recipes import RECIPES
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe, Recompute, RecomputeModule
from predictor.core.workload.switches import Ffn
from predictor.core.workload.tasks import Task
from predictor.core.workload.transformer import LayerKind
from predictor.core.workload.transformer_step import layer_block, transformer_step
from tests.layers import kept_of

DENSE, IN_16_BITS = LayerKind(), LayerKind(in_16_bits=True)
H100 = REGRESSORS_FOLDER / "H100"
SQUARE = (8192, 8192, 8192)
MODEL = {"num_layers": 8, "hidden_size": 4096, "num_attention_heads": 32, "sequence_length": 4096}


def run_of(**changes: Any) -> TrainingRun:
    content: dict[str, Any] = {
        "system": "H100",
        "model": {**MODEL, "activation": "swiglu", "normalization": "fused_rms_norm"},
        "parallelism": {"data_parallel_size": 8},
        "training": {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16"},
    }
    return replace(prepare(content, Path()).run, **changes)


def products(tasks: list[Task]) -> dict[str, str]:
    return {task.name: task.operator.computed_in for task in tasks if task.operator.family == "linear"}


def kept_added(run: TrainingRun, kind: LayerKind) -> dict[Role, float]:
    """Return the bytes that a layer keeps beyond those of 16-bit products, by tensor."""
    low, plain = (kept_of(each, kind) for each in (run, replace(run, gemm_recipe=None)))
    return {role: added for role in Role if (added := low.of(role) - plain.of(role))}


def sum_of(tasks: list[Task], name: str) -> float:
    """Return the elements that the streams of a name move, as additions."""
    return sum(task.times * task.shape[0] * task.shape[1] for task in tasks if task.name == name)


def test_linear_layers_run_in_it_and_the_output_projection_does_not() -> None:
    run = run_of(gemm_recipe=GemmRecipe.MXFP8)
    block = layer_block(run, DENSE)
    expected = dict.fromkeys(("qkv_projection", "attention_output", "ffn_up", "ffn_down"), "mxfp8")
    assert products(block.forward.tasks) == products(block.backward.tasks) == expected
    edges = [block for stage in transformer_step(run).stages for chunk in stage.chunks for block, _ in chunk.blocks]
    assert products([task for block in edges for task in block.forward.tasks])["lm_head"] == ""


def test_the_router_of_experts_stays_in_16_bits() -> None:
    content = {
        "system": "H100",
        "model": {
            **MODEL,
            "activation": "swiglu",
            "moe": {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 1024},
        },
        "parallelism": {"data_parallel_size": 8, "expert_parallel_size": 8},
        "training": {"micro_batch_size": 1, "num_micro_batches": 1, "precision": "bf16", "gemm_recipe": "fp8_delayed"},
    }
    block = layer_block(prepare(content, Path()).run, LayerKind(ffn=Ffn.EXPERTS))
    assert products(block.forward.tasks) == {
        "qkv_projection": "fp8",
        "attention_output": "fp8",
        "expert_up": "fp8",
        "expert_down": "fp8",
        "router_projection": "",
    }


def test_first_and_last_layers_are_left_out() -> None:
    run = run_of(gemm_recipe=GemmRecipe.FP8_TENSORWISE, layers_in_16_bits_at_start=1, layers_in_16_bits_at_end=2)
    assert run.stage_kinds(0) == {IN_16_BITS: 3, DENSE: 5}
    assert set(products(layer_block(run, IN_16_BITS).forward.tasks).values()) == {""}
    assert run_of(layers_in_16_bits_at_start=1, layers_in_16_bits_at_end=2).stage_kinds(0) == {DENSE: 8}


def test_casts_read_and_write_what_the_recipe_says() -> None:
    delayed, current = (run_of(gemm_recipe=r) for r in (GemmRecipe.FP8_DELAYED, GemmRecipe.FP8_TENSORWISE))
    call = delayed.call()
    behind_norms, others = 2 * 4096 * 4096, 4096 * (4096 + call.ffn_width)
    written = 4096 * (call.qkv_width + 2 * 4096 + 2 * call.ffn_width)
    bytes_per_addition = 3 * 2
    for run, normalized, activation, gradient in ((delayed, 1, 4, 4), (current, 6, 6, 6)):
        block = layer_block(run, DENSE)
        forward = normalized * behind_norms + activation * others
        assert sum_of(block.forward.tasks, "operand_casts") * bytes_per_addition == pytest.approx(forward, rel=1e-6)
        backward = gradient * written
        assert sum_of(block.backward.tasks, "operand_casts") * bytes_per_addition == pytest.approx(backward, rel=1e-6)


def test_torchaos_rows_scale_the_results_of_backward_products_behind_them() -> None:
    run = run_of(gemm_recipe=GemmRecipe.FP8_ROWWISE, compiled=True)
    call, tasks = run.call(), layer_block(run, DENSE).backward.tasks
    inputs = 4096 * (3 * 4096 + call.ffn_width)  # of qkv, output, gate and up, down
    written = 4096 * (call.qkv_width + 2 * 4096 + 2 * call.ffn_width)
    weights = 4096 * (call.qkv_width + 4096 + 3 * call.ffn_width)
    torchao = RECIPES[GemmRecipe.FP8_ROWWISE].torchao
    expected = torchao.gradient * written + 4 * (inputs + weights)
    assert sum_of(tasks, "operand_casts") * 6 == pytest.approx(expected, rel=1e-6)
    assert not RECIPES[GemmRecipe.FP8_TENSORWISE].torchao.rescaled


def test_weights_are_cast_once_a_step_where_they_are_kept() -> None:
    kept = run_of(gemm_recipe=GemmRecipe.FP8_DELAYED)
    sharded = replace(kept, zero_stage=3)
    assert not sum_of(layer_block(kept, DENSE).forward.tasks, "weight_casts")
    weights = kept.layer_parameters(DENSE).total
    (end,) = {stage.end for stage in transformer_step(kept).stages}
    assert sum_of(end.optimizer, "weight_casts") * 6 == pytest.approx(8 * weights * 4, rel=1e-6)
    for tasks in (layer_block(sharded, DENSE).forward.tasks, layer_block(sharded, DENSE).backward.tasks):
        assert sum_of(tasks, "weight_casts") * 6 == pytest.approx(weights * 4, rel=0.01)  # norms have weights too
    assert not sum_of(transformer_step(sharded).stages[0].end.optimizer, "weight_casts")


def test_gathers_shrink() -> None:
    layout = replace(run_of().layout, tensor_parallel_size=8, data_parallel_size=1)
    sixteen = run_of(layout=layout, sequence_parallel=True)
    eight = replace(sixteen, gemm_recipe=GemmRecipe.FP8_DELAYED)

    def sent(run: TrainingRun, name: str) -> float:
        return sum(task.shape[0] * task.times for task in layer_block(run, DENSE).forward.tasks if task.name == name)

    assert sent(eight, "all_gather") == sent(sixteen, "all_gather") / 2
    assert sent(eight, "reduce_scatter") == sent(sixteen, "reduce_scatter")


def test_inputs_are_kept_as_they_were_cast() -> None:
    run = run_of(gemm_recipe=GemmRecipe.FP8_DELAYED)
    call = run.call()
    # Two inputs behind norms and the FFN's inner one take a byte less; attention's output is kept twice.
    expected = -(2 * 4096 * 4096 + 4096 * call.ffn_width) + 4096 * 4096
    assert sum(kept_added(run, DENSE).values()) == expected
    assert not kept_added(replace(run, compiled=True), DENSE)
    assert not kept_added(run, IN_16_BITS)
    layers = run.layer_parameters(DENSE).total * 8
    assert cast_weights(run, [(DENSE, 8)]) == 2 * layers
    assert cast_weights(replace(run, gather_precision="fp8"), [(DENSE, 8)]) == 0
    assert cast_weights(replace(run, zero_stage=3), [(DENSE, 8)]) == 0.0


@pytest.mark.parametrize(("name", "precision"), [("H100", "fp8"), ("B200", "mxfp8"), ("B200", "nvfp4")])
def test_products_are_as_much_faster_as_the_training_library_measured(name: str, precision: str) -> None:
    system, ffn_up = open_system(REGRESSORS_FOLDER / name, "bf16"), catalogue()["ffn_up"]
    for direction in Direction:
        sixteen = system.cost(ffn_up, direction, SQUARE)
        few = system.cost(in_precision(ffn_up, precision), direction, SQUARE)
        assert sixteen.us / few.us == pytest.approx(speedup(system.hardware.gpu, precision, direction), rel=0.05)
        assert few.source is Source.ANALYTIC
        assert few.high_us / few.low_us > sixteen.high_us / sixteen.low_us


# Milliseconds of a layer's products alone, and with all operands cast, on B300: hidden size 4,096, FFN 16,384, 15,872
# tokens. Source: Transformer Engine, docs/examples/gemm_profiling/gemm_profiling.rst.
PRODUCTS_MS = {"": 13.10, "fp8": 6.81, "mxfp8": 7.16, "nvfp4": 3.76}
CASTS_MS = {GemmRecipe.FP8_TENSORWISE: 2.34, GemmRecipe.MXFP8: 1.82, GemmRecipe.NVFP4: 2.69}
TOKENS, WIDTHS = 15872, ((4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096))


@pytest.mark.parametrize("precision", PRODUCTS_MS)
def test_products_take_what_transformer_engine_measured(precision: str) -> None:
    system = open_system(REGRESSORS_FOLDER / "B300", "bf16")
    operator = in_precision(catalogue()["ffn_up"], precision) if precision else catalogue()["ffn_up"]
    us = sum(system.cost(operator, direction, (TOKENS, *size)).us for size in WIDTHS for direction in Direction)
    assert us / 1e3 == pytest.approx(PRODUCTS_MS[precision], rel=0.08)


@pytest.mark.parametrize("recipe", CASTS_MS)
def test_casts_take_what_transformer_engine_measured(recipe: GemmRecipe) -> None:
    system, casts = open_system(REGRESSORS_FOLDER / "B300", "bf16"), RECIPES[recipe].transformer_engine
    addition = system.cost(catalogue()["residual_add"], Direction.FORWARD, (16384, 4096)).us / (16384 * 4096 * 6)
    inputs, weights = (TOKENS * sum(k for k, _ in WIDTHS), sum(k * n for k, n in WIDTHS))
    gradients = TOKENS * sum(n for _, n in WIDTHS)  # each operand is cast in each of the two products that take it
    size_bytes = 2 * (casts.activation * inputs + casts.weight * weights + casts.gradient * gradients)
    assert size_bytes * addition / 1e3 == pytest.approx(CASTS_MS[recipe], rel=0.15)


def test_tensor_cores_must_know_the_precision() -> None:
    system, ffn_up = open_system(REGRESSORS_FOLDER / "H100", "bf16"), catalogue()["ffn_up"]
    with pytest.raises(PublishedError, match="nvfp4 peak"):
        system.cost(in_precision(ffn_up, "nvfp4"), Direction.FORWARD, SQUARE)


def test_mfu_is_of_the_products_peak() -> None:
    system = open_system(H100, "bf16")
    gpu = system.hardware.gpu
    assert predict(run_of(gemm_recipe=GemmRecipe.FP8_DELAYED), system).peak_tflop_per_s == 1979.0
    assert predict(run_of(), system).peak_tflop_per_s == 989.5
    assert peak_tflop_per_s(gpu, "mxfp8") == peak_tflop_per_s(gpu, "fp8")


def test_modules_that_run_again_save_no_bytes_of_their_casts() -> None:
    run = run_of(
        gemm_recipe=GemmRecipe.FP8_DELAYED,
        recompute=Recompute.SELECTIVE,
        recompute_modules=(RecomputeModule.NORMS, RecomputeModule.MLP),
    )
    kept, _ = kept_and_recomputed(run, DENSE)
    tokens, hidden = 4096, 4096
    # What both norms read, queries, keys and values, a fp32 sum a row, attention's output and its cast; nothing of the
    # FFN and of the norms' outputs.
    expected = 2 * 2 * tokens * hidden + 3 * 2 * tokens * hidden + 4 * 32 * tokens + (2 + 1) * tokens * hidden
    assert kept == expected


def test_layers_without_an_ffn_save_nothing_of_one() -> None:
    run = run_of(gemm_recipe=GemmRecipe.FP8_DELAYED)
    model = replace(
        run.model,
        mamba2=Mamba2(num_heads=64, head_dim=128, state_size=128, num_groups=8),
        layer_types=(Mixer.MAMBA2,),
        ffn_types=(Ffn.NONE,),
    )
    run = replace(run, model=model)
    kind = run.kind(0)
    # One byte less of the norm's output and of the output projection's input.
    assert kept_added(run, kind) == {Role.NORMED: -4096.0 * 4096, Role.CORE: -4096.0 * 64 * 128}


def test_where_products_take_any_layout_weights_have_one_and_none_is_transposed() -> None:
    for recipe in (GemmRecipe.FP8_DELAYED, GemmRecipe.FP8_TENSORWISE):
        hopper = run_of(gemm_recipe=recipe, gather_precision="fp8", zero_stage=1)
        blackwell = replace(hopper, transposes_fp8=False)
        weights = hopper.layer_parameters(DENSE).held.total
        layers = [(DENSE, 1)]
        assert cast_weights(hopper, layers) == 0.0  # two layouts in place of 16 bits
        assert cast_weights(blackwell, layers) == -weights
        (there,), (here,) = ({stage.end for stage in transformer_step(run).stages} for run in (hopper, blackwell))
        assert sum_of(there.optimizer, "weight_casts")
        assert not sum_of(here.optimizer, "weight_casts")
    blocks = run_of(gemm_recipe=GemmRecipe.MXFP8)
    assert recipe_of(blocks, DENSE) == recipe_of(replace(blocks, transposes_fp8=False), DENSE)


def test_data_centre_blackwell_takes_any_layout() -> None:
    gpus = {
        name: open_system(REGRESSORS_FOLDER / name, "bf16").hardware.gpu for name in ("H100", "B200", "RTX_PRO_6000")
    }
    assert {name: transposes_fp8(gpu) for name, gpu in gpus.items()} == {
        "H100": True,
        "B200": False,
        "RTX_PRO_6000": True,
    }
