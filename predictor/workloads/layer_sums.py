"""The sums of a layer over the tensor-parallel group: their traffic, and what of it hides beside products."""

from __future__ import annotations

from typing import NamedTuple

from predictor.costs.operator import Direction
from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.expert_exchange import gathered_sums
from predictor.workloads.expert_ranks import expert_sums
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.linear_layers import COLUMN_PARALLEL
from predictor.workloads.linear_traffic import forward_in_chunks, gradients_in_chunks
from predictor.workloads.low_precision import gathered_share
from predictor.workloads.measured_kernels import input_gradient, weight_gradient
from predictor.workloads.run import TrainingRun
from predictor.workloads.switches import LayerKind
from predictor.workloads.tasks import BACKWARD, FORWARD, Overlap, Part, PassTasks, Task, collective_task
from predictor.workloads.transformer import Transformer


def all_reduces(model: Transformer, kind: LayerKind, direction: Direction, given: int | None) -> int:
    """Return the tensor-parallel sums of one pass through a layer: one per branch, token mixer and FFN.

    Forward, side by side, attention and FFN are summed once. Backward each column-parallel product sums the gradient of
    its own input. Source: GPT-NeoX megatron/model/transformer.py (gpt_j_residual: one ``self.reduce``) and
    megatron/mpu/layers.py (ColumnParallelLinear: copy_to_model_parallel_region).
    """
    if given is not None:
        return given
    return 1 if model.parallel_residual and direction is FORWARD else kind.branches


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
    syncs, experts = all_reduces(run.model, kind, direction, given), run.model.experts
    if not kind.has_experts or experts is None:
        return Sums(syncs, 0.0)
    shared = 1 if experts.shared_expert_ffn_hidden_size else 0
    return Sums(syncs - 1 + shared, gathered_sums(experts, run.layout, run.expert_dispatcher))


class Side(NamedTuple):
    """Bytes of a sum over those of an activation: of its gather before a product, and of its scatter or sum."""

    gathered: float
    summed: float = 1.0


def _sums(run: TrainingRun, call: LayerCall, count: float, side: Side) -> list[Task]:
    """Return the traffic of so many sums over the tensor-parallel group in one direction.

    With sequence parallelism each is a gather before a column-parallel product and a scatter behind the row-parallel
    one, of the same bytes together.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """
    if not count:
        return []
    group = run.layout.tensor_group()
    activation = call.tokens * call.hidden_size * call.element_bytes
    if not run.sequence_parallel:
        return collective_task("all_reduce", activation * side.summed, group, Part.TENSOR_PARALLEL, count)
    shard = activation // call.tensor_parallel_size
    return [
        *collective_task("all_gather", shard * side.gathered, group, Part.TENSOR_PARALLEL, count),
        *collective_task("reduce_scatter", shard * side.summed, group, Part.TENSOR_PARALLEL, count),
    ]


def _routed_sums(run: TrainingRun, call: LayerCall, count: float) -> list[Task]:
    """Return the sums of routed tokens, over the ranks that split an expert."""
    experts = run.model.experts
    if experts is None or not count:
        return []
    width = experts.token_width(call.hidden_size)
    if run.layout.is_folded:
        return expert_sums(call, run.layout, width, count)
    share = width / call.hidden_size
    return _sums(run, call, count, Side(share, share))


def _input_share(run: TrainingRun, kind: LayerKind) -> float:
    """Return the width of what a token mixer's column-parallel products read over the hidden one.

    The latents of latent attention are narrower; its down-projections run on a rank's own tokens, whole on each.
    Source: Megatron-LM, core/transformer/multi_latent_attention.py (linear_q_down_proj, linear_kv_down_proj).
    """
    mixer = run.model.token_mixer(kind.mixer)
    return 1.0 if mixer is None else mixer.gathered_width(run.model.hidden_size) / run.model.hidden_size


def _linear_sums(run: TrainingRun, kind: LayerKind, call: LayerCall, direction: Direction, count: float) -> list[Task]:
    """Return the traffic of a layer's linear sums in one direction."""
    share, gathered = _input_share(run, kind), gathered_share(run, kind)
    if share == 1.0 or not count:
        return _sums(run, call, count, Side(gathered))
    narrow = Side(gathered * share) if direction is FORWARD else Side(gathered, summed=share)
    return _sums(run, call, 1.0, narrow) + _sums(run, call, count - 1.0, Side(gathered))


def _gathered_again(run: TrainingRun, kind: LayerKind, call: LayerCall, count: float, sums: list[Task]) -> list[Task]:
    """Return the gathers, backward, of the inputs of column-parallel products: their weights' gradients need them.

    Frozen weights have no gradients; what adapters read of a gathered input is kept.
    """
    if not run.sequence_parallel or run.lora is not None:
        return []
    if _input_share(run, kind) != 1.0:
        sums = _linear_sums(run, kind, call, FORWARD, count)
    return [task for task in sums if task.name == "all_gather"]


def with_forward_sums(run: TrainingRun, kind: LayerKind, call: LayerCall, layer: PassTasks) -> PassTasks:
    """Return a forward pass with its sums, after its tasks or in chunks beside its products."""
    counts = _sum_counts(run, kind, FORWARD, run.model.forward_all_reduces)
    linear = _linear_sums(run, kind, call, FORWARD, counts.linear)
    routed = _routed_sums(run, call, counts.routed)
    if not run.overlap_linear_traffic:
        return PassTasks(layer.tasks + linear + routed, layer.overlaps)
    chunked = forward_in_chunks(layer.tasks, linear, counts.linear, call.tensor_parallel_size)
    return PassTasks(chunked.tasks + routed, layer.overlaps + chunked.overlaps)


def backward_sums(run: TrainingRun, kind: LayerKind, call: LayerCall, tasks: list[Task]) -> PassTasks:
    """Return the sums of a backward pass, and what of them runs beside products that do not wait for it.

    The gradient of a column-parallel product's input travels while that of its weights is computed, and with sequence
    parallelism its input is gathered again while the gradient of it is computed. Source: Megatron-LM
    core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.backward. Tokens on their way to
    their experts wait for nothing that could run beside them.
    """
    counts = _sum_counts(run, kind, BACKWARD, run.model.backward_all_reduces)
    sums = _linear_sums(run, kind, call, BACKWARD, counts.linear)
    routed = _routed_sums(run, call, counts.routed)
    again = _gathered_again(run, kind, call, counts.linear, sums)
    if not (run.overlap_tensor_parallel or run.overlap_linear_traffic):
        return PassTasks(sums + again + routed, [])
    columns = [task for task in tasks if task.name in COLUMN_PARALLEL]
    waiting = [task for task in sums if task.name == "all_gather"]
    leaving = [task for task in sums if task.name != "all_gather"]
    if SCHEDULES[run.schedule].splits_backward:  # the gradients of weights have slots of their own, later
        waiting, leaving = waiting + leaving, []
    beside = (leaving, weight_gradient), (again, input_gradient)
    overlaps = [
        Overlap(traffic, [product(run.model, task) for task in columns], slows=True)
        for traffic, product in beside
        if traffic
    ]
    if not run.overlap_linear_traffic or not leaving:
        return PassTasks(waiting + routed, overlaps)
    chunked = gradients_in_chunks(run.model, tasks, waiting, counts.linear, call.tensor_parallel_size)
    return PassTasks(chunked.tasks + routed, overlaps + chunked.overlaps)
