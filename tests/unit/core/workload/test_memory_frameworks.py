"""Memory as FSDP, torchtitan, Transformer Engine and DeepSpeed hold it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.core.rows import Role
from predictor.core.step.memory import StageMemory, step_memory
from predictor.core.workload.layer import kept_and_recomputed
from predictor.core.workload.layout import Layout
from predictor.core.workload.parallelism_keys import GatherPrecision
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe, Recompute, RecomputeModule
from predictor.core.workload.software import Framework
from predictor.core.workload.transformer import LayerKind, Loss
from predictor.core.workload.transformer_memory import WORKSPACE_BYTES, edge_memory, layer_memory
from predictor.core.workload.transformer_step import transformer_step
from tests.layers import kept_of
from tests.unit.llama_8b import LLAMA_8B

DENSE = LayerKind()
FSDP = TrainingRun(
    model=replace(LLAMA_8B, loss=Loss.TORCH),
    layout=Layout(1, 1, 8, gpus_per_node=8),
    layers_per_stage=(32,),
    micro_batch_size=1,
    num_micro_batches=1,
    precision="bf16",
    recompute=Recompute.NONE,
    schedule="1f1b",
    zero_stage=3,
    gradient_bucket_elements=500_000_000,
    overlap_gradient_reduction=True,
    overlap_parameter_gather=True,
    gradient_reduction="reduce_scatter",
    fp32_gradients=True,
    fp32_parameters=True,
)


def memory_of(run: TrainingRun) -> StageMemory:
    (memory,) = step_memory(transformer_step(run))
    return memory


def test_fsdp_keeps_16_bytes_a_parameter() -> None:
    # Zhao et al. 2023, arXiv:2304.11277, section 4.4: shards stay in full precision, 16 bits exist while gathered.
    memory = memory_of(FSDP)
    assert memory.weights == 0.0
    assert memory.states == pytest.approx(16 * FSDP.stage_parameters(0) / 8)
    kept_apart = memory_of(replace(FSDP, fp32_parameters=False))
    assert kept_apart.states == pytest.approx(18 * FSDP.stage_parameters(0) / 8)


def test_states_are_shared_out_inside_a_group() -> None:
    assert memory_of(replace(FSDP, zero_group_size=2)).states == pytest.approx(4 * memory_of(FSDP).states)


def test_weights_that_stay_gathered_take_their_16_bits() -> None:
    resharded, gathered = (memory_of(replace(FSDP, reshard_after_forward=value)) for value in (True, False))
    layers = FSDP.model.num_layers * FSDP.layer_parameters(DENSE).total * 2
    assert gathered.working - resharded.working == pytest.approx(layers, rel=0.2)


def test_every_second_product_of_a_layer_is_kept() -> None:
    # torchtitan's op mode, per token: input 4096, q 4096 and v 1024 (k is left out), attention's output 4096 with its
    # row sums, the first of the FFN's two inner products 14336, and eager the layer's last product.
    run = replace(FSDP, recompute=Recompute.PER_OP)
    kept = 8192 * (2 * (4096 + 4096 + 1024 + 4096 + 14336) + 4 * 32)
    assert kept_and_recomputed(replace(run, compiled=True), DENSE)[0] == kept
    assert kept_and_recomputed(run, DENSE)[0] == kept + 8192 * 2 * 4096


def test_a_compiler_keeps_inputs_and_products_alone() -> None:
    eager, compiled = (kept_and_recomputed(replace(FSDP, compiled=value), DENSE)[0] for value in (False, True))
    per_token = 2 * (2 * 4096 + 6144 + 4096 + 2 * 14336) + 4 * 32
    assert compiled == 8192 * per_token < eager


@pytest.mark.parametrize(("every", "first", "recomputed"), [(2, None, 16), (5, None, 6), (1, 8, 8)])
def test_layers_that_are_not_recomputed_keep_everything(every: int, first: int | None, recomputed: int) -> None:
    none, full = (
        kept_and_recomputed(replace(FSDP, recompute=mode), DENSE)[0] for mode in (Recompute.NONE, Recompute.FULL)
    )
    run = replace(FSDP, recompute=Recompute.FULL, recompute_every=every, recompute_num_layers=first)
    layers = transformer_step(run).stages[0].chunks[0].blocks[1:]
    kept = sum(block.memory.kept * count for block, count in layers)
    assert kept == pytest.approx((32 - recomputed) * none + recomputed * full)


@pytest.mark.parametrize(
    ("module", "dropped"),
    [
        (RecomputeModule.MLP_ACTIVATION, Role.ACTIVATED),
        (RecomputeModule.NORMS, Role.NORMED),
        (RecomputeModule.CORE_ATTENTION, Role.SCORES),
    ],
)
def test_a_recomputed_module_drops_its_tensors(module: RecomputeModule, dropped: Role) -> None:
    run = replace(FSDP, recompute=Recompute.SELECTIVE, recompute_modules=(module,))
    whole = kept_of(run, DENSE)
    kept, again = kept_and_recomputed(run, DENSE)
    assert again == whole.of(dropped) > 0
    assert kept == whole.total - again


def test_deepspeed_widens_the_gradients_of_a_rank_and_keeps_its_pipelines_outputs() -> None:
    run = replace(
        FSDP, zero_stage=1, fp32_parameters=False, fp32_gradients=False, layout=Layout(1, 2, 4, gpus_per_node=8)
    )
    run = replace(run, layers_per_stage=(16, 16), num_micro_batches=4, overlap_parameter_gather=False)
    plain, deepspeed = (transformer_step(replace(run, framework=name)) for name in (None, Framework.MEGATRON_DEEPSPEED))
    parameters = run.rank_parameters(0).total
    assert deepspeed.stages[0].states.buffers - plain.stages[0].states.buffers == pytest.approx(6 * parameters / 4)
    outputs = step_memory(deepspeed)[0].activations - step_memory(plain)[0].activations
    assert outputs == 2 * 8192 * 4096 * 2  # of two micro-batches in flight
    accumulated = transformer_step(replace(run, framework=Framework.DEEPSPEED, fp32_gradients=True)).stages[0].states
    assert accumulated.gradients == 6 * parameters


def test_deepspeed_without_zero_widens_all_gradients_twice() -> None:
    run = replace(FSDP, zero_stage=0, fp32_parameters=False, fp32_gradients=False, overlap_parameter_gather=False)
    plain, deepspeed = (memory_of(replace(run, framework=name)) for name in (None, Framework.MEGATRON_DEEPSPEED))
    assert deepspeed.buffers - plain.buffers == pytest.approx(8 * run.rank_parameters(0).total)


@pytest.mark.parametrize("fp32", [True, False])
def test_products_that_add_up_gradients_leave_placeholders_not_buckets(fp32: bool) -> None:
    run = replace(FSDP, zero_stage=1, fp32_parameters=False, fp32_gradients=fp32, fused_gradient_accumulation=True)
    assert memory_of(run).buffers == 2 * run.layer_parameters(DENSE).total + 2 * WORKSPACE_BYTES


@pytest.mark.parametrize(("given", "per_parameter"), [(None, 12), (10.0, 10), (4.0, 4)])
def test_the_optimizer_keeps_what_the_run_says(given: float | None, per_parameter: int) -> None:
    run = replace(FSDP, zero_stage=1, fp32_parameters=False, optimizer_state_bytes=given)
    assert memory_of(run).optimizer == pytest.approx(per_parameter * run.rank_parameters(0).total / 8)


@pytest.mark.parametrize(("travels", "gathered"), [("bf16", 2), ("fp8", 1), ("fp32", 6)])
def test_gathered_weights_take_what_travels_and_the_narrowed_copy(travels: GatherPrecision, gathered: int) -> None:
    run = replace(FSDP, gather_precision=travels, reshard_after_forward=False)
    assert layer_memory(run, DENSE).gathered == gathered * run.layer_parameters(DENSE).total


def test_weights_gathered_in_fp8_are_the_only_ones() -> None:
    run = replace(FSDP, zero_stage=1, fp32_parameters=False, gemm_recipe=GemmRecipe.FP8_DELAYED)
    both, alone = memory_of(run), memory_of(replace(run, gather_precision="fp8"))
    layers = FSDP.model.num_layers * FSDP.layer_parameters(DENSE).total
    assert both.weights - alone.weights == 2 * layers
    assert alone.weights == 2 * run.rank_parameters(0).total  # 8 bits, rows and columns


def test_gradients_of_activations_exist_in_every_layers_backward_pass() -> None:
    run = replace(FSDP, zero_stage=0)
    assert layer_memory(run, DENSE).working == 8192 * 2 * (4096 + 3 * 14336)


def test_megatrons_own_fused_loss_overwrites_fp32_logits_through_a_copy() -> None:
    ends = {
        loss: edge_memory(replace(FSDP, model=replace(FSDP.model, loss=loss)), is_first=False, is_last=True).kept_last
        for loss in (Loss.FUSED, Loss.VOCABULARY_PARALLEL, Loss.FUSED_NATIVE)
    }
    logits = 4 * FSDP.call().tokens * FSDP.call().vocab_per_rank
    assert ends[Loss.VOCABULARY_PARALLEL] - ends[Loss.FUSED] == logits
    assert ends[Loss.FUSED_NATIVE] - ends[Loss.VOCABULARY_PARALLEL] == logits


def test_transformer_engine_has_a_workspace_of_its_own() -> None:
    named = memory_of(replace(FSDP, framework=Framework.MEGATRON_LM)).buffers
    assert named - memory_of(replace(FSDP, framework=Framework.PYTORCH)).buffers == WORKSPACE_BYTES
