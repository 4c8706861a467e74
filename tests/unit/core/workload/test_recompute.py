"""What recomputation runs again: of which layers, and what of each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.blocks.experts import routed_tokens
from predictor.core.checks.training import check_recomputation
from predictor.core.costs.operator import Direction
from predictor.core.folds import pass_tasks
from predictor.core.plan.to_run import to_run
from predictor.core.rows import OF_FFN, Kind, Row
from predictor.core.schema.presets import preset, preset_names
from predictor.core.schema.sections import validate
from predictor.core.transforms.lora import EVERY_LINEAR, Lora
from predictor.core.transforms.recomputation import recomputed_layers
from predictor.core.workload.layout import Layout
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe, Recompute, RecomputeModule
from predictor.core.workload.switches import Ffn
from predictor.core.workload.tasks import TRAFFIC
from predictor.core.workload.transformer import Attention, LayerKind, MixtureOfExperts, Normalization
from predictor.core.workload.transformer_memory import layer_memory
from predictor.core.workload.transformer_step import generator_launches, layer_block, transformer_step
from tests.layers import rows_of, times
from tests.unit.llama_8b import LLAMA_8B

LLAMA = replace(LLAMA_8B, normalization=Normalization.FUSED_RMS_NORM)
RUN = TrainingRun(
    model=LLAMA,
    layout=Layout(1, 1, 8, gpus_per_node=8),
    layers_per_stage=(32,),
    micro_batch_size=1,
    num_micro_batches=2,
    precision="bf16",
    recompute=Recompute.FULL,
    schedule="1f1b",
    zero_stage=1,
    gradient_bucket_elements=10_000_000,
)
EXPERTS = replace(
    RUN,
    model=replace(LLAMA, experts=MixtureOfExperts(8, 2, 2048, 2048), fused_side_kernels=True),
    recompute=Recompute.SELECTIVE,
)
DENSE, SPARSE = LayerKind(), LayerKind(ffn=Ffn.EXPERTS)


def recomputed(run: TrainingRun, kind: LayerKind = DENSE) -> dict[str, float]:
    return times(layer_block(run, kind).recompute)


def test_every_second_product_runs_again_and_attention_does_not() -> None:
    again = recomputed(replace(RUN, recompute=Recompute.PER_OP))
    # Of queries, keys and values (4096 + 1024 + 1024 wide) the keys; of gate and up the up.
    assert again["qkv_projection"] == pytest.approx(1 / 6)
    assert again["attention_output"] == 1.0
    assert again["ffn_up"] == 0.5
    assert again["layer_norm"] == 2.0
    assert not {"ffn_down", "grouped_query_attention"} & set(again)


def test_scatters_are_saved_and_gathers_run_again() -> None:
    split = replace(RUN, layout=Layout(2, 1, 4, gpus_per_node=8), sequence_parallel=True, recompute=Recompute.PER_OP)
    again = recomputed(split)
    assert again["all_gather"] == 2.0
    assert "reduce_scatter" not in again


@pytest.mark.parametrize(
    ("every", "count", "expected"), [(1, None, 32), (2, None, 16), (3, None, 10), (1, 4, 4), (1, 99, 32)]
)
def test_some_of_a_chunks_layers_are_recomputed(every: int, count: int | None, expected: int) -> None:
    run = replace(RUN, recompute_every=every, recompute_num_layers=count)
    assert recomputed_layers(run, 32) == expected
    blocks = transformer_step(run).stages[0].chunks[0].blocks[1:]
    assert sum(number for block, number in blocks if block.recompute.tasks) == expected
    assert sum(number for _, number in blocks) == 32


def test_layers_that_are_recomputed_at_once_keep_one_input_and_exist_together() -> None:
    one, four = (layer_memory(replace(RUN, recompute_group_layers=count), DENSE) for count in (1, 4))
    assert four.kept == one.kept / 4
    whole = layer_memory(replace(RUN, recompute=Recompute.NONE), DENSE).kept
    assert four.working - one.working == pytest.approx(3 * whole)
    assert recomputed(replace(RUN, recompute_group_layers=4)) == recomputed(RUN)


def test_layers_that_keep_their_activations_hold_more() -> None:
    half = transformer_step(replace(RUN, recompute_every=2)).stages[0].chunks[0].blocks[1:]
    again, kept = (block.memory.kept for block, _ in half)
    assert again == layer_memory(RUN, DENSE).kept
    assert kept == layer_memory(replace(RUN, recompute=Recompute.NONE), DENSE).kept > again


def test_no_recomputation_recomputes_no_layer() -> None:
    assert recomputed_layers(replace(RUN, recompute=Recompute.NONE), 32) == 0
    assert recomputed(replace(RUN, recompute=Recompute.NONE)) == {}


def test_selective_recomputation_covers_the_named_modules() -> None:
    selective = replace(RUN, recompute=Recompute.SELECTIVE)
    assert recomputed(selective) == {"grouped_query_attention": 1.0}
    norms = replace(selective, recompute_modules=(RecomputeModule.NORMS, RecomputeModule.MLP_ACTIVATION))
    assert recomputed(norms) == {"layer_norm": 2.0, "swiglu": 1.0}
    mlp = replace(selective, layout=Layout(2, 1, 4, gpus_per_node=8), recompute_modules=(RecomputeModule.MLP,))
    assert recomputed(mlp) == {"ffn_up": 1.0, "swiglu": 1.0, "ffn_down": 1.0, "all_reduce": 1.0}


def test_modules_of_experts_recompute_in_layers_with_experts_alone() -> None:
    whole = replace(EXPERTS, recompute_modules=(RecomputeModule.MOE,))
    assert recomputed(whole, DENSE) == {}
    again = recomputed(whole, SPARSE)
    assert again["expert_down"] == pytest.approx(8)  # of one rank
    assert again["ffn_down"] == pytest.approx(1)  # the shared ones
    shared = recomputed(replace(EXPERTS, recompute_modules=(RecomputeModule.SHARED_EXPERTS,)), SPARSE)
    assert shared == {"ffn_up": 1.0, "fused_gate": 0.5, "ffn_down": 1.0}  # the gate is timed by its bytes


def test_a_recomputed_module_keeps_less() -> None:
    call = EXPERTS.call()

    def kept(*names: RecomputeModule) -> float:
        mode = Recompute.SELECTIVE if names else Recompute.NONE
        return layer_memory(replace(EXPERTS, recompute=mode, recompute_modules=names), SPARSE).kept

    outputs = routed_tokens(EXPERTS.model.experts, call, EXPERTS.layout) * 2048 * 2  # type: ignore[arg-type]
    assert kept() - kept(RecomputeModule.MOE_ACTIVATION) == outputs
    assert kept() - kept(RecomputeModule.NORMS) == 2 * call.tokens * 4096 * 2
    assert kept(RecomputeModule.MOE) < kept(RecomputeModule.SHARED_EXPERTS) < kept()


def test_every_second_product_keeps_less_than_all_and_more_than_the_input() -> None:
    none, per_op, full = (
        layer_memory(replace(RUN, recompute=mode), DENSE).kept
        for mode in (Recompute.NONE, Recompute.PER_OP, Recompute.FULL)
    )
    assert full < per_op < none


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"recompute_num_layers": 2}, "recompute_num_layers is given and recompute is none"),
        ({"recompute": "full", "recompute_every": 2, "recompute_num_layers": 2}, "leave one out"),
        ({"recompute": "full", "recompute_num_layers": 1, "recompute_group_layers": 2}, "needs recompute: full of all"),
        ({"recompute": "selective", "recompute_group_layers": 2}, "needs recompute: full of all"),
        ({"recompute": "full", "recompute_modules": ["core_attn"]}, "it needs selective"),
        ({"recompute": "selective", "recompute_modules": ["moe"]}, "the model has no experts"),
        ({"recompute": "selective", "recompute_modules": ["mla_up_proj"]}, "the model has no latent attention"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(training: dict[str, object], said: str) -> None:
    model = {"num_layers": 2, "hidden_size": 1024, "num_attention_heads": 16, "sequence_length": 512}
    given = {"micro_batch_size": 1, "num_micro_batches": 1, **training}
    config = validate({"system": "Perlmutter", "model": model, "training": given})
    with pytest.raises(ConfigError, match=said):
        check_recomputation(config.training, config.model)


def test_a_checkpoint_saves_and_restores_random_states() -> None:
    full, none = (generator_launches(replace(RUN, recompute=mode)) for mode in (Recompute.FULL, Recompute.NONE))
    assert full == (1.0, 3.0)  # two states forward; saved, set and restored in the second forward
    assert none == (0.0, 0.0)
    dropped = replace(RUN, model=replace(LLAMA, attention=Attention.UNFUSED, attention_dropout=0.1))
    assert generator_launches(dropped) == (3.0, 5.0)


# Parts of a layer without an FFN that one with it runs more often, outside Megatron-LM's module mlp.
BESIDE_FFN = {
    *(kind.operator for kind in Normalization),
    "residual_add",
    "hidden_dropout",
    "bias_additions",
    "bias_gradients",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mxfp8": {"gemm_recipe": GemmRecipe.MXFP8, "gather_precision": "fp8"},
    "mxfp8, attention too": {"gemm_recipe": GemmRecipe.MXFP8, "fp8_attention": True},
    "fp8, weights cast again": {"gemm_recipe": GemmRecipe.FP8_DELAYED, "zero_stage": 3},
    "adapters": {"lora": Lora(16, EVERY_LINEAR), "zero_stage": 0},
    "adapters in mxfp8": {"lora": Lora(16, EVERY_LINEAR), "zero_stage": 0, "gemm_recipe": GemmRecipe.MXFP8},
}


def preset_runs(variant: dict[str, Any]) -> Iterator[tuple[TrainingRun, LayerKind]]:
    """Yield a run of every preset with each kind of its layers."""
    for name in preset_names():
        given = {"system": "H100", "model": preset(name)}
        config = validate({**given, "training": {"micro_batch_size": 1, "num_micro_batches": 2, "precision": "bf16"}})
        run = replace(to_run(config, gpus_per_node=8), **variant)
        for kind in run.stage_kinds(0):
            yield run, kind


def amounts(rows: list[Row], direction: Direction) -> Counter[tuple[str, object]]:
    counted: Counter[tuple[str, object]] = Counter()
    for row in rows:
        task = row.task(direction)
        if task is not None and task.part not in TRAFFIC and task.name not in BESIDE_FFN:
            counted[task.name, task.shape] += round(task.times * 1e9)
    return +counted


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_an_ffn_is_what_a_layer_runs_more_than_one_without_it(variant: dict[str, Any]) -> None:
    found = 0
    for run, kind in preset_runs(variant):
        whole, mixer = rows_of(run, kind), kind._replace(ffn=Ffn.NONE)
        without = rows_of(run, mixer) if mixer.branches else []
        assert not any(row.module in OF_FFN for row in without)
        marked = [row for row in whole if row.module in OF_FFN]
        for direction in Direction:
            of_ffn, of_layer, of_rest = (amounts(rows, direction) for rows in (marked, whole, without))
            assert of_ffn == of_layer - of_rest, (run.model, kind)
            found += bool(of_ffn)
    assert found > 100


def test_an_mlp_recomputed_in_mxfp8_casts_its_own_operands_alone() -> None:
    run = replace(
        RUN, recompute=Recompute.SELECTIVE, recompute_modules=(RecomputeModule.MLP,), gemm_recipe=GemmRecipe.MXFP8
    )
    rows = [row for row in rows_of(run, DENSE) if row.kind is Kind.CAST]
    again = [row for row in rows if row.again]
    assert (len(rows), len(again)) == (4, 2)  # inputs of queries, keys and values, attention's output, up, down
    assert again == [row for row in rows if row.module in OF_FFN]
    assert {row.again for row in again} == {1.0}
    casts = [task for task in layer_block(run, DENSE).recompute.tasks if task.name == "operand_casts"]
    assert casts == pass_tasks(again, Direction.FORWARD).tasks
