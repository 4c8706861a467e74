"""Attention in 8 bits: measured ratios, casts and kept bytes by hand, one recipe's layers, refusals in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.costs.attention_precision import precision_ratios
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import Direction, in_kernel, in_precision
from predictor.core.costs.published import open_system
from predictor.core.folds import pass_tasks
from predictor.core.plan.loading import prepare
from predictor.core.rows import Module
from predictor.core.step.prediction import predict
from predictor.core.workload.attention_precision import attention_recipe
from predictor.core.workload.layer import kept_and_recomputed
from predictor.core.workload.layer_table import kept_rows
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe
from predictor.core.workload.tasks import PassTasks, stream_task
from predictor.core.workload.transformer import LayerKind

MODEL = {
    "num_layers": 8,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sequence_length": 8192,
    "activation": "swiglu",
    "normalization": "fused_rms_norm",
}
LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DENSE = LayerKind()
QUERIES, KEYS = 8192 * 32 * 128, 8192 * 8 * 128


def content(system: str, recipe: str | None, model: dict[str, Any], **training: Any) -> dict[str, Any]:
    given = {"micro_batch_size": 1, "num_micro_batches": 2, "precision": "bf16", "gemm_recipe": recipe}
    return {
        "system": system,
        "model": MODEL | model,
        "parallelism": {"data_parallel_size": 8},
        "training": given | {"fp8_attention": True} | training,
    }


def run_of(system: str, recipe: str, model: dict[str, Any] | None = None, **training: Any) -> TrainingRun:
    return prepare(content(system, recipe, model or {}, **training), Path()).run


def core(run: TrainingRun, direction: Direction) -> PassTasks:
    return pass_tasks([row for row in kept_rows(run, DENSE) if row.module is Module.CORE], direction)


@pytest.mark.parametrize(
    ("name", "precision", "direction", "ratio"),
    [
        ("H200", "fp8", Direction.FORWARD, 0.67),
        ("H200", "fp8", Direction.BACKWARD, 1.58),
        ("GB200", "fp8", Direction.FORWARD, 0.70),
        ("GB200", "mxfp8", Direction.BACKWARD, 1.05),
    ],
)
def test_attention_in_8_bits_takes_what_cudnn_took(
    name: str, precision: str, direction: Direction, ratio: float
) -> None:
    system, attention = (
        open_system(REGRESSORS_FOLDER / name, "bf16"),
        in_kernel(catalogue()["flash_attention"], "cudnn"),
    )
    shape = (2, 8192, 64, 128, 1)
    sixteen = system.cost(attention, direction, shape)
    eight = system.cost(in_precision(attention, precision), direction, shape)
    assert eight.us / sixteen.us == pytest.approx(ratio)
    assert eight.source is Source.ANALYTIC
    assert eight.high_us / eight.low_us > sixteen.high_us / sixteen.low_us


def test_heads_of_latent_attention_have_ratios_of_their_own_and_hopper_has_none() -> None:
    latent, shape = in_precision(in_kernel(catalogue()["mla_attention"], "cudnn"), "fp8"), (1, 8192, 128)
    plain = in_kernel(catalogue()["mla_attention"], "cudnn")
    system = open_system(REGRESSORS_FOLDER / "GB200", "bf16")
    times = [system.cost(operator, Direction.BACKWARD, shape).us for operator in (latent, plain)]
    assert times[0] / times[1] == pytest.approx(0.59)
    with pytest.raises(PublishedError, match="heads 192 wide does not train in fp8 on GPUs with wgmma"):
        open_system(REGRESSORS_FOLDER / "H200", "bf16").cost(latent, Direction.FORWARD, shape)


def test_every_ratio_says_its_source() -> None:
    for instruction in ("wgmma", "tcgen05"):
        assert all("bench" in ratios.source for ratios in precision_ratios(instruction).values())
    assert not precision_ratios("mma")


@pytest.mark.parametrize(
    ("system", "recipe", "forward", "backward"),
    [
        # Joined and cast, 4 + 3 bytes; the output widened, 3. Backward: its gradient cast; theirs joined, widened.
        ("H100", "fp8_delayed", 7 * (QUERIES + 2 * KEYS) + 3 * QUERIES, 3 * QUERIES + 5 * (QUERIES + 2 * KEYS)),
        # Read once more for the largest number; the kernel writes 16 bits.
        ("B200", "fp8_tensorwise", 9 * (QUERIES + 2 * KEYS), 5 * QUERIES),
        # Two layouts in blocks of 32, 28 % over their bytes.
        ("B200", "mxfp8", 1.28 * (2 + 2 * 33 / 32) * (QUERIES + 2 * KEYS), 1.28 * (2 + 2 * 33 / 32) * QUERIES),
    ],
)
def test_casts_move_their_bytes(system: str, recipe: str, forward: float, backward: float) -> None:
    run = run_of(system, recipe)
    for direction, size_bytes in ((Direction.FORWARD, forward), (Direction.BACKWARD, backward)):
        attention, casts = core(run, direction).tasks
        assert attention.operator.kernel == "cudnn"
        assert attention.operator.computed_in == ("mxfp8" if recipe == "mxfp8" else "fp8")
        expected = stream_task("attention_casts", size_bytes, run.call(), launches=casts.launches)
        assert casts == expected


def test_layers_in_16_bits_have_attention_in_16_bits() -> None:
    run = run_of("B200", "mxfp8", layers_in_16_bits_at_end=2)
    assert [attention_recipe(run, run.kind(layer)) is not None for layer in range(8)] == [True] * 6 + [False] * 2


@pytest.mark.parametrize(
    ("recipe", "per_operand", "per_output"), [("fp8_tensorwise", -1.0, 0.0), ("mxfp8", 2 * 33 / 32 - 2, 0.0)]
)
def test_attention_keeps_what_it_cast(recipe: str, per_operand: float, per_output: float) -> None:
    run = run_of("B200", recipe)
    kept, _ = kept_and_recomputed(run, DENSE)
    without, _ = kept_and_recomputed(replace(run, fp8_attention=False), DENSE)
    assert kept - without == pytest.approx(per_operand * (QUERIES + 2 * KEYS) + per_output * QUERIES)


def test_recomputed_projections_save_nothing_of_what_attention_cast() -> None:
    model = {"latent_attention": LATENT, "num_key_value_heads": None}
    run = run_of("GB200", "mxfp8", model, recompute="selective", recompute_modules=["mla_up_proj"])
    kept, _ = kept_and_recomputed(run, DENSE)
    without, _ = kept_and_recomputed(replace(run, fp8_attention=False), DENSE)
    operands = 8192 * 32 * (2 * 192 + 128)
    assert kept - without == pytest.approx(operands * 2 * 33 / 32)


def test_a_ring_sends_keys_and_values_in_8_bits() -> None:
    run = run_of("H100", "fp8_delayed")
    run = replace(run, layout=replace(run.layout, context_parallel_size=4, data_parallel_size=2))
    sent = []
    for each in (run, replace(run, fp8_attention=False)):
        passes = [core(each, direction) for direction in Direction]
        sent.append([step.overlaps[0].traffic[0].times for step in passes])
    # Of three other ranks' keys and values half the bytes; backward their gradients travel as ever, and once more.
    assert sent == [[1.5, 1.5 + 4], [3, 3 + 4]]


@pytest.mark.parametrize(
    ("system", "recipe", "model", "training", "message"),
    [
        (
            "H100",
            None,
            {},
            {},
            "it is Transformer Engine's, beside gemm_recipe fp8_delayed, fp8_tensorwise, mx",
        ),
        ("H100", "fp8_blockwise", {}, {}, "it is Transformer Engine's"),
        ("B200", "fp8_tensorwise", {}, {"compiled": True}, "without compiled"),
        ("B200", "mxfp8", {}, {"attention_kernel": "flash_2"}, "cudnn's kernel computes it"),
        (
            "B200",
            "mxfp8",
            {"sliding_window": 1024},
            {},
            "with model.sliding_window, which the kernel in 8 bits does not",
        ),
        ("B200", "mxfp8", {"attention_sinks": True}, {}, "with model.attention_sinks"),
        ("B200", "mxfp8", {}, {"document_tokens": 512}, "with training.document_tokens"),
        ("B200", "mxfp8", {"head_dim": 256}, {}, "heads are 256 wide"),
        ("H100", "fp8_tensorwise", {}, {}, "on H100 it needs fp8_delayed"),
        ("H100", "fp8_delayed", {"head_dim": 64}, {}, "trains heads of 128 only"),
        ("RTX_PRO_6000", "fp8_delayed", {}, {}, "RTX_PRO_6000 does not train with attention in 8 bits"),
    ],
)
def test_what_no_kernel_computes_is_refused(
    system: str, recipe: str | None, model: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(content(system, recipe, model, **training), Path())


def test_long_sequences_gain_more_on_blackwell_than_short_ones() -> None:
    gains = []
    for length in (2048, 32768):
        given = [
            content("B200", "fp8_tensorwise", {"sequence_length": length}, fp8_attention=in_8_bits)
            for in_8_bits in (True, False)
        ]
        loaded = [prepare(each, Path()) for each in given]
        times = [predict(each.run, each.system).step.us for each in loaded]
        gains.append(times[0] / times[1])
    assert gains[1] < gains[0]
    assert gains[1] < 0.95


def test_recipes_without_attention_in_8_bits_have_none() -> None:
    run = run_of("B200", "mxfp8")
    assert attention_recipe(replace(run, gemm_recipe=None), DENSE) is None
    assert attention_recipe(replace(run, gemm_recipe=GemmRecipe.NVFP4), DENSE) == attention_recipe(run, DENSE)
