"""One layer of a run, folded from its rows: passes and kept bytes, computed once for all runs that share it."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from predictor.core.base.lazy import lazy
from predictor.core.base.remembered import remembered
from predictor.core.blocks.mixers import LayerKind
from predictor.core.folds import (
    KeptBytes,
    kept_bytes,
    pass_tasks,
    recomputed_tasks,
    waits_for_counts,
    weight_gradient_tasks,
)
from predictor.core.rows import Role, Row
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.transforms.compilation import fused
from predictor.core.transforms.recomputation import modules, selected
from predictor.core.workload.layer_table import kept_rows, layer_rows
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.tasks import BACKWARD, FORWARD, Part, PassTasks, Task, collective_task


# Activations that a layer keeps from its forward to its backward pass, in bytes. Those of a GPT layer without biases in
# flash attention add up to Korthikanti et al. 2022, arXiv:2205.05198, sections 4.1 to 4.2: s·b·h·(10 + 24/t +
# 5·a·s/(h·t)), and s·b·h/t·(34 + 5·a·s/h) with sequence parallelism, with one difference: they count a key-value pair
# per query head, and this counts what the architecture has.
def checkpoint_bytes(run: TrainingRun) -> float:
    """Return the bytes of a layer's input, which full recomputation keeps."""
    call = run.call()
    split = run.partition_activations and not run.sequence_parallel
    tokens = call.tokens / call.tensor_parallel_size if split else call.unsplit_tokens
    return float(tokens * call.hidden_size * call.element_bytes)


def _every_second_product(run: TrainingRun, kind: LayerKind, kept: KeptBytes) -> float:
    """Return the bytes that torchtitan's per-op selective checkpointing keeps.

    The layer's input, attention's output, and of the layer's matrix products (q, k, v, output, then the FFN's) every
    second, from the first on. Compiled, the last product's output is not kept: nothing backward reads it.

    Source: torchtitan, torchtitan/models/llama3/infra/parallelize.py, _apply_ac_to_transformer_block (op).
    """
    call = run.layer_call(kind)
    queries = call.tokens * call.attention_width * call.element_bytes
    values = call.tokens * call.key_value_heads_per_rank * call.head_dim * call.element_bytes
    last = 0.0 if run.compiled else call.unsplit_tokens * call.hidden_size * call.element_bytes
    gated = 0.5 if run.model.activation.gated else 1.0
    inner = kept.of(Role.INNER) * gated
    whole = kept.of(Role.LATENT, Role.CORE, Role.SCORES, Role.ROUTED)
    return kept.of(Role.INPUT) / 2 + queries + values + whole + inner + last


def kept_of_layer(run: TrainingRun, kind: LayerKind) -> KeptBytes:
    """Return what one layer of a kind keeps of what selective recomputation leaves, in its recipe's precision."""
    rows = kept_rows(run, kind)
    if run.recompute is Recompute.SELECTIVE:
        rows = selected(rows, modules(run), kind.has_experts)
    return kept_bytes(rows)


def kept_and_recomputed(run: TrainingRun, kind: LayerKind, rows: list[Row] | None = None) -> tuple[float, float]:
    """Return the bytes that a layer keeps, and what it holds besides while it is computed again.

    Args:
        run: the run; ``recompute`` applies to this layer, whichever others it leaves out (``of_layer``).
        kind: of the layer.
        rows: of the layer before recomputation, where they are at hand.
    """
    rows = kept_rows(run, kind) if rows is None else rows
    if run.compiled:
        rows = [fused(row) for row in rows]
    kept = kept_bytes(rows)
    if run.recompute is Recompute.NONE:
        return kept.total, 0.0
    if run.recompute is Recompute.FULL:
        return checkpoint_bytes(run) / run.recompute_group_layers, kept.total * run.recompute_group_layers
    if run.recompute is Recompute.PER_OP:
        left = _every_second_product(run, kind, kept)
    else:
        left = kept_bytes(selected(rows, modules(run), kind.has_experts)).total
    return left, max(0.0, kept.total - left)


def _checkpoint_gather(run: TrainingRun, kind: LayerKind) -> list[Task]:
    """Return the gather of a checkpointed input that is kept split, before it is recomputed."""
    if run.recompute is not Recompute.FULL or not run.partition_activations or run.sequence_parallel:
        return []
    call = run.layer_call(kind)
    shard = call.tokens * call.hidden_size * call.element_bytes // call.tensor_parallel_size
    return collective_task("all_gather", shard, run.layout.tensor_group(), Part.TENSOR_PARALLEL)


class LayerPasses(NamedTuple):
    """One micro-batch's passes through a layer.

    Attributes:
        recompute: of the forward pass, before the backward pass.
        weight: the part of the backward pass that a schedule runs in slots of its own.
        counted: tasks of the forward pass whose sizes the host reads from the device before it launches them: those of
            experts, but where a capacity fixes them. Backward it remembers them. Source: Megatron-LM
            core/transformer/moe/token_dispatcher.py, _maybe_dtoh_and_synchronize; experts.py,
            tokens_per_expert.tolist().
    """

    forward: PassTasks
    recompute: PassTasks
    backward: PassTasks
    weight: list[Task]
    counted: list[Task]


class Layer:
    """A layer of a run, shared by all runs in which it is the same."""

    def __init__(self, run: TrainingRun, kind: LayerKind) -> None:
        """Prepare for a kind of layer of a run; nothing is computed yet."""
        self._run, self._kind = run, kind

    @lazy
    def _rows(self) -> list[Row]:
        """Its rows before recomputation and traffic between tensor-parallel ranks."""
        return kept_rows(self._run, self._kind)

    @lazy
    def passes(self) -> LayerPasses:
        """Its passes, without accumulation of gradients and sharding."""
        run, kind, experts = self._run, self._kind, self._run.model.experts
        rows = layer_rows(run, kind, self._rows)
        counts = kind.has_experts and experts is not None and experts.capacity_factor is None
        again = recomputed_tasks(rows)
        return LayerPasses(
            pass_tasks(rows, FORWARD),
            PassTasks(again.tasks + _checkpoint_gather(run, kind), again.overlaps),
            pass_tasks(rows, BACKWARD),
            weight_gradient_tasks(rows, run.model.measured_kernels) if SCHEDULES[run.schedule].splits_backward else [],
            waits_for_counts(rows) if counts else [],
        )

    @lazy
    def kept_and_recomputed(self) -> tuple[float, float]:
        """Bytes that it keeps, and bytes that it holds besides while it is computed again."""
        return kept_and_recomputed(self._run, self._kind, self._rows)


# Settings of a run that its layers depend on, the sizes of a call and the groups of ranks aside.
OF_A_LAYER = attrgetter(
    *("precision", "sequence_parallel", "partition_activations", "overlap_tensor_parallel", "overlap_linear_traffic"),
    *("zero_stage", "gather_precision", "gemm_recipe", "transposes_fp8", "fp8_attention", "attention_kernel"),
    *("recompute", "recompute_modules", "recompute_stops_early", "recompute_group_layers", "compiled"),
    *("cuda_graphs", "expert_dispatcher", "fused_experts", "overlap_expert_parallel", "lora"),
    *("fused_gradient_accumulation", "fp32_gradients", "copies_split_tokens"),
)
_LAYERS: dict[tuple[object, ...], Layer] = {}


def _ranks(run: TrainingRun, kind: LayerKind) -> tuple[object, ...]:
    """Return the groups of ranks that a layer's traffic depends on."""
    layout = run.layout
    groups: list[object] = [layout.tensor_group()]
    if layout.context_parallel_size > 1:
        groups += [layout.context_hop(), layout.context_group()]
    if kind.has_experts:
        groups += [layout.expert_group(), layout.expert_parallel_size, layout.expert_split]
        groups.append(layout.expert_tensor_group() if layout.is_folded else None)
        if run.overlap_expert_parallel:
            groups += [layout.pipeline_parallel_size, run.num_micro_batches]
    return tuple(groups)


def layer_of(run: TrainingRun, kind: LayerKind) -> Layer:
    """Return one layer of a kind, recomputed as the run says."""
    splits = SCHEDULES[run.schedule].splits_backward
    key = run.model.layer_sizes, kind, run.layer_call(kind), _ranks(run, kind), splits, OF_A_LAYER(run)
    return remembered(_LAYERS, key, lambda: Layer(run, kind))
