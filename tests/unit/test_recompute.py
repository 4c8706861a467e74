"""What recomputation runs again: of which layers, and what of each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.base.errors import ConfigError
from predictor.configuration.recomputation import check_recomputation
from predictor.configuration.sections import validate
from predictor.workloads.experts import routed_tokens
from predictor.workloads.layout import Layout
from predictor.workloads.recompute import recomputed_layers
from predictor.workloads.run import Recompute, RecomputeModule, TrainingRun
from predictor.workloads.switches import Ffn
from predictor.workloads.tasks import PassTasks
from predictor.workloads.transformer import (
    Attention,
    LayerKind,
    MixtureOfExperts,
    Normalization,
)
from predictor.workloads.transformer_memory import layer_memory
from predictor.workloads.transformer_step import generator_launches, layer_block, transformer_step
from tests.unit.llama_8b import LLAMA_8B

LLAMA = replace(LLAMA_8B, normalization=Normalization.FUSED_RMS_NORM)
RUN = TrainingRun(
    model=LLAMA,
    layout=Layout(1, 1, 8, 8),
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


def times(tasks: PassTasks) -> dict[str, float]:
    counted: dict[str, float] = {}
    for task in tasks.tasks:
        counted[task.name] = counted.get(task.name, 0.0) + task.times
    return counted


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
    split = replace(RUN, layout=Layout(2, 1, 4, 8), sequence_parallel=True, recompute=Recompute.PER_OP)
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
    mlp = replace(selective, layout=Layout(2, 1, 4, 8), recompute_modules=(RecomputeModule.MLP,))
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
