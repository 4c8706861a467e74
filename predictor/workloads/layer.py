"""The tasks of one transformer layer on one rank, forward and backward, side kernels included.

Side kernels are what a layer runs beside its named operators: bias additions, dropout, layout copies, the sums that
bias gradients are, the concatenation of the query, key and value gradients, and the accumulation of weight gradients
over micro-batches. They stream memory, so their bytes time them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from predictor.costs.operator import Direction
from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.attention import MASK_BYTES, attention_core, core_names, dropout_bytes, split_core
from predictor.workloads.expert_exchange import gathered_sums
from predictor.workloads.expert_ranks import expert_sums
from predictor.workloads.experts import FUSED_GATE_PASSES, exchange, expert_tasks
from predictor.workloads.fused import fused_additions
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.linear_layers import COLUMN_PARALLEL, HALF_OF_BACKWARD
from predictor.workloads.linear_traffic import forward_in_chunks, gradients_in_chunks
from predictor.workloads.low_precision import gathered_share, with_low_precision
from predictor.workloads.run import TrainingRun
from predictor.workloads.tasks import (
    ADD_PASSES,
    BACKWARD,
    FORWARD,
    Overlap,
    Part,
    PassTasks,
    Task,
    collective_task,
    operator_task,
    scaled,
    share_of,
    stream_task,
)
from predictor.workloads.transformer import Biases, LayerKind, Transformer

COPY_PASSES = 2


def layer_operators(model: Transformer, kind: LayerKind) -> tuple[str, ...]:
    """Return the named operators of one layer in the order of its forward pass, experts left out."""
    if model.layer_operators is not None:
        return model.layer_operators
    norm = model.normalization.operator
    norms = (norm, norm) if model.post_norms else (norm,)
    rope = ("rope",) if model.rotary_fraction and not model.fused_rope else ()
    core = core_names(model, kind)
    attention = (*norms, "qkv_projection", *rope, *core, "attention_output", "residual_add")
    if kind.has_experts:
        return (*attention, *norms, "residual_add")
    gate = () if model.fused_side_kernels else ("swiglu",)
    activation = gate if model.activation.gated else ("gelu",)
    return (*attention, *norms, "ffn_up", *activation, "ffn_down", "residual_add")


def _operators(run: TrainingRun, kind: LayerKind, call: LayerCall, direction: Direction) -> PassTasks:
    """Return everything between a layer's sums: attention's core, then the other operators by count, then experts."""
    names = layer_operators(run.model, kind)
    _, others = split_core(names)
    tasks = [operator_task(name, call, direction, times) for name, times in others]
    if kind.has_experts:
        tasks += expert_tasks(run, call, direction)
    tasks = with_low_precision(run, kind, call, direction, tasks)
    core = attention_core(run.model, names, call, direction, run.layout, run.attention_kernel or "")
    computing = core + PassTasks(tasks, [])
    return computing + exchange(run, call, computing.tasks) if kind.has_experts else computing


def all_reduces(model: Transformer, direction: Direction, given: int | None) -> int:
    """Return the tensor-parallel sums of one pass through a layer.

    Forward, side by side, attention and FFN are summed once. Backward each column-parallel product sums the gradient of
    its own input. Source: GPT-NeoX megatron/model/transformer.py (gpt_j_residual: one ``self.reduce``) and
    megatron/mpu/layers.py (ColumnParallelLinear: copy_to_model_parallel_region).
    """
    if given is not None:
        return given
    return 1 if model.parallel_residual and direction is FORWARD else 2


def _shared_side_kernels(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the side kernels that run in both directions."""
    heads = call.tokens * call.attention_width
    keys = call.tokens * call.key_value_heads_per_rank * call.head_dim
    whole = call.unsplit_tokens * call.hidden_size
    copy_bytes = COPY_PASSES * call.element_bytes
    tasks = [stream_task("context_copy", heads * copy_bytes, call)]
    if 0.0 < model.rotary_fraction < 1.0 and not model.fused_rope:
        tasks.append(stream_task("rope_concatenation", (heads + keys) * copy_bytes, call, launches=2))
    if model.rotary_fraction and model.fused_rope:
        tasks.append(stream_task("rope", (heads + keys) * model.rotary_fraction * copy_bytes, call, launches=2))
    if model.qk_norm:
        passes = COPY_PASSES if direction is FORWARD else ADD_PASSES
        tasks.append(stream_task("qk_norm", (heads + keys) * passes * call.element_bytes, call, launches=2))
    if model.hidden_dropout:
        fused = model.fused_side_kernels and direction is FORWARD
        size_bytes = MASK_BYTES if fused else dropout_bytes(call)
        tasks.append(stream_task("hidden_dropout", 2 * whole * size_bytes, call, launches=0 if fused else 2))
    return tasks


def _fused_gate(run: TrainingRun, kind: LayerKind, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the gated activation as one kernel, unless another is named."""
    model = run.model
    named = model.layer_operators is not None or kind.has_experts
    if named or not (model.activation.gated and model.fused_side_kernels):
        return []
    passes = FUSED_GATE_PASSES[direction is BACKWARD]
    return [stream_task("fused_gate", call.tokens * call.ffn_width * passes * call.element_bytes, call)]


def sized(run: TrainingRun, kind: LayerKind) -> LayerCall:
    """Return the sizes that the operators of one kind of layer see."""
    call = run.call()
    return replace(call, window=run.model.sliding_window) if kind.is_windowed else call


class Sums(NamedTuple):
    """The sums over the tensor-parallel group of one pass through a layer, in activations' worth of tokens.

    Attributes:
        linear: behind row-parallel products whose inputs come from column-parallel ones.
        routed: of tokens on their way to their experts, once per chosen expert.
    """

    linear: float
    routed: float


def _sum_counts(run: TrainingRun, kind: LayerKind, direction: Direction, given: int | None) -> Sums:
    """Return how many sums a pass has; experts have theirs instead of the FFN's, and shared ones the FFN's."""
    syncs, experts = all_reduces(run.model, direction, given), run.model.experts
    if not kind.has_experts or experts is None:
        return Sums(syncs, 0.0)
    shared = 1 if experts.shared_expert_ffn_hidden_size else 0
    return Sums(syncs - 1 + shared, gathered_sums(experts, run.layout, run.expert_dispatcher))


def _sums(run: TrainingRun, call: LayerCall, count: float, gathered: float = 1.0) -> list[Task]:
    """Return the traffic of so many sums over the tensor-parallel group in one direction.

    With sequence parallelism each is a gather before a column-parallel product and a scatter behind the row-parallel
    one, of the same bytes together; ``gathered`` scales those of the gather.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """
    if not count:
        return []
    group = run.layout.tensor_group()
    activation = call.tokens * call.hidden_size * call.element_bytes
    if not run.sequence_parallel:
        return collective_task("all_reduce", activation, group, Part.TENSOR_PARALLEL, count)
    shard = activation // call.tensor_parallel_size
    return [
        *collective_task("all_gather", shard * gathered, group, Part.TENSOR_PARALLEL, count),
        *collective_task("reduce_scatter", shard, group, Part.TENSOR_PARALLEL, count),
    ]


def _routed_sums(run: TrainingRun, call: LayerCall, count: float) -> list[Task]:
    """Return the sums of routed tokens, over the ranks that split an expert."""
    return expert_sums(call, run.layout, count) if run.layout.is_folded else _sums(run, call, count)


def forward_pass(run: TrainingRun, kind: LayerKind) -> PassTasks:
    """Return one layer's forward pass; row-parallel outputs are summed over the tensor-parallel group."""
    model, call = run.model, sized(run, kind)
    activation = call.unsplit_tokens * call.hidden_size * call.element_bytes
    operators = _operators(run, kind, call, FORWARD)
    tasks = operators.tasks + _fused_gate(run, kind, call, FORWARD) + _shared_side_kernels(model, call, FORWARD)
    if run.compiled:
        tasks = fused_additions(tasks, FORWARD)
    if model.biases is Biases.ALL and not model.fused_side_kernels:
        tasks.append(stream_task("bias_additions", 2 * 2 * activation, call, launches=2))
    sums = _sum_counts(run, kind, FORWARD, model.forward_all_reduces)
    linear, routed = _sums(run, call, sums.linear, gathered_share(run, kind)), _routed_sums(run, call, sums.routed)
    if not run.overlap_linear_traffic:
        return PassTasks(tasks + linear + routed, operators.overlaps)
    chunked = forward_in_chunks(tasks, linear, sums.linear, call.tensor_parallel_size)
    return PassTasks(chunked.tasks + routed, operators.overlaps + chunked.overlaps)


def _backward_traffic(run: TrainingRun, kind: LayerKind, call: LayerCall, tasks: list[Task]) -> PassTasks:
    """Return the sums of a backward pass, and what of them runs beside products that do not wait for it.

    The gradient of a column-parallel product's input travels while that of its weights is computed, and with sequence
    parallelism its input is gathered again while the gradient of it is computed. Source: Megatron-LM
    core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.backward. Tokens on their way to
    their experts wait for nothing that could run beside them.
    """
    counts = _sum_counts(run, kind, BACKWARD, run.model.backward_all_reduces)
    sums, routed = _sums(run, call, counts.linear, gathered_share(run, kind)), _routed_sums(run, call, counts.routed)
    again = [task for task in sums if run.sequence_parallel and task.name == "all_gather"]
    if not (run.overlap_tensor_parallel or run.overlap_linear_traffic):
        return PassTasks(sums + again + routed, [])
    half = share_of([task for task in tasks if task.name in COLUMN_PARALLEL], HALF_OF_BACKWARD)
    waiting = [task for task in sums if task.name == "all_gather"]
    leaving = [task for task in sums if task.name != "all_gather"]
    if SCHEDULES[run.schedule].splits_backward:  # the gradients of weights have slots of their own, later
        waiting, leaving = waiting + leaving, []
    overlaps = [Overlap(traffic, half, slows=True) for traffic in (leaving, again) if traffic]
    if not run.overlap_linear_traffic or not leaving:
        return PassTasks(waiting + routed, overlaps)
    chunked = gradients_in_chunks(tasks, waiting, counts.linear, call.tensor_parallel_size)
    return PassTasks(chunked.tasks + routed, overlaps + chunked.overlaps)


def weight_gradients(run: TrainingRun, backward: PassTasks) -> list[Task]:
    """Return the part of a backward pass that makes the gradients of weights, for which only the optimizer waits.

    Empty where the schedule does not split backward passes. Source: Qi et al. 2023, arXiv:2401.10241.
    """
    if not SCHEDULES[run.schedule].splits_backward:
        return []
    linear = [task for task in backward.tasks if task.operator.family == "linear"]
    beside = [task for task in backward.tasks if task.name in ("gradient_accumulation", "bias_gradients")]
    return scaled(linear, HALF_OF_BACKWARD) + beside


def gradient_accumulation(run: TrainingRun, kind: LayerKind) -> Task:
    """Return the addition of a layer's weight gradients to those of earlier micro-batches: of all but the first."""
    call = sized(run, kind)
    gradient_bytes = 2 * run.gradient_bytes + call.element_bytes  # the sum is read and written, the new one read
    dense, routed = run.layer_parameters(kind)
    if run.zero_stage >= 2:  # only a rank's own share is kept, and so added up
        dense, routed = dense // run.zero_ranks, routed // run.expert_zero_ranks
    return stream_task("gradient_accumulation", (dense + routed) * gradient_bytes, call, launches=0)


# Products of weight gradients that add to fp32 sums take longer than forward products of the same FLOPs: 1.05 times on
# an A100, 1.07 to 1.09 on a B200, at 4,096 tokens. Source: MooreThreads/SimuMax@e691807, configs/system/a100_pcie.json
# and b200_bf16_ceperm.json (layout NT, accumulate, fp32), Transformer Engine's layers. What they do more is to read and
# widen sums, whatever the tokens: per parameter 0.05 of 2 · 4,096 FLOPs at 3/4 of 312 TFLOP/s is 1.8 ps on an A100, a
# separate addition's 10 bytes at 85 % of 2,039 GB/s are 5.8 ps; on a B200 (2,250 TFLOP/s, 8,000 GB/s) 0.39 and 1.47.
FP32_SUMS = 0.3


def accumulation_tasks(run: TrainingRun, kind: LayerKind) -> list[Task]:
    """Return what adding to earlier micro-batches' gradients costs a micro-batch after the first.

    Fused into the products, sums in fp32 still take their share of a separate addition; a rank that keeps only its
    share of the gradients has nothing that products could add to.
    """
    separate = [gradient_accumulation(run, kind)]
    if not run.fused_gradient_accumulation:
        return separate
    widens = run.gradient_bytes > run.element_bytes and run.zero_stage < 2
    return share_of(separate, FP32_SUMS) if widens else []


def backward_pass(run: TrainingRun, kind: LayerKind) -> PassTasks:
    """Return one layer's backward pass without recomputation and gradient accumulation.

    The gradients of column-parallel inputs are summed over the tensor-parallel group.
    """
    model, call = run.model, sized(run, kind)
    operators = _operators(run, kind, call, BACKWARD)
    tasks = operators.tasks + _fused_gate(run, kind, call, BACKWARD) + _shared_side_kernels(model, call, BACKWARD)
    if run.compiled:
        tasks = fused_additions(tasks, BACKWARD)
    tasks.append(stream_task("qkv_concatenation", call.tokens * call.qkv_width * 2 * call.element_bytes, call))
    if model.biases is Biases.ALL:
        width = call.qkv_width + call.ffn_width
        size_bytes = (call.tokens * width + call.unsplit_tokens * 2 * call.hidden_size) * call.element_bytes
        tasks.append(stream_task("bias_gradients", size_bytes, call, launches=8))
    traffic = _backward_traffic(run, kind, call, tasks)
    return PassTasks(tasks + traffic.tasks, operators.overlaps + traffic.overlaps)
