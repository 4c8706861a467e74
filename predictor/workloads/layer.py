"""The tasks of one transformer layer on one rank, forward and backward: token mixer, FFN or experts, side kernels."""

from __future__ import annotations

from collections import Counter

from predictor.costs.operator import Direction
from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.accumulation import accumulating
from predictor.workloads.adapters import PRODUCTS, adapter_tasks, frozen
from predictor.workloads.attention import core_names, split_core
from predictor.workloads.attention_precision import core_of_layer
from predictor.workloads.experts import exchange, expert_tasks
from predictor.workloads.fused import fused_additions
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.layer_sums import backward_sums, with_forward_sums
from predictor.workloads.low_precision import with_low_precision
from predictor.workloads.measured_kernels import weight_gradient
from predictor.workloads.mixers.token_mixer import Kernels
from predictor.workloads.run import TrainingRun
from predictor.workloads.side_kernels import (
    bias_additions,
    bias_gradients,
    gate_of_layer,
    qkv_concatenation,
    shared_side_kernels,
)
from predictor.workloads.switches import Ffn, LayerKind, Mixer
from predictor.workloads.tasks import (
    BACKWARD,
    FORWARD,
    Part,
    PassTasks,
    Task,
    collective_task,
    in_ffn,
    operator_task,
)
from predictor.workloads.transformer import Transformer

FFN_OPERATORS = frozenset({"ffn_up", "gelu", "swiglu", "ffn_down"})


def _mixer_operators(model: Transformer, kind: LayerKind, norms: tuple[str, ...]) -> tuple[str, ...]:
    """Return the named operators of a layer's token mixer; those of others than plain attention are its own tasks."""
    if kind.mixer is Mixer.NONE:
        return ()
    if model.token_mixer(kind.mixer) is not None:
        return (*norms, *core_names(model, kind), "residual_add")
    rope = ("rope",) if model.rotary_fraction and kind.rotates and not model.fused_rope else ()
    return (*norms, "qkv_projection", *rope, *core_names(model, kind), "attention_output", "residual_add")


def layer_operators(model: Transformer, kind: LayerKind) -> tuple[str, ...]:
    """Return the named operators of one layer in the order of its forward pass, experts left out."""
    if model.layer_operators is not None:
        return model.layer_operators
    norm = model.norm_operator
    norms: tuple[str, ...] = (norm, norm) if model.post_norms else (norm,)
    mixer = _mixer_operators(model, kind, norms)
    if mixer and model.shared_input_norm:
        norms = norms[1:]
    if kind.ffn is Ffn.NONE:
        return mixer
    if kind.has_experts:
        return (*mixer, *norms, "residual_add")
    gate = () if model.fused_side_kernels else ("swiglu",)
    activation = gate if model.activation.gated else ("gelu",)  # streams what the other element-wise ones do
    return (*mixer, *norms, "ffn_up", *activation, "ffn_down", "residual_add")


def _operators(run: TrainingRun, kind: LayerKind, call: LayerCall, direction: Direction) -> PassTasks:
    """Return everything between a layer's sums: attention's core, then the other operators by count, then experts."""
    names = layer_operators(run.model, kind)
    _, others = split_core(names)
    tasks = [
        operator_task(name, call, direction, times)._replace(of_ffn=name in FFN_OPERATORS) for name, times in others
    ]
    mixer = run.model.token_mixer(kind.mixer)
    if mixer is not None:
        kernels = Kernels(run.model.norm_operator, run.model.fused_rope)
        tasks += mixer.tasks(call, direction, kernels)
    if (beside := run.model.beside(kind.mixer)) is not None:
        tasks += beside.tasks(call, direction, Kernels(run.model.norm_operator, run.model.fused_rope))
    if run.model.per_layer_inputs is not None:
        tasks += run.model.per_layer_inputs.tasks(call, direction, run.model.norm_operator)
    if kind.has_experts:
        tasks += in_ffn(expert_tasks(run, call, direction))
    tasks = with_low_precision(run, kind, call, direction, tasks)
    if run.lora is not None:
        tasks = frozen(run.model, tasks, direction) + adapter_tasks(run, kind, call, direction)
    core = core_of_layer(run, kind, names, call, direction)
    computing = core + PassTasks(tasks + _context_exchange(run, kind, call), [])
    return computing + exchange(run, call, computing.tasks) if kind.has_experts else computing


def _context_exchange(run: TrainingRun, kind: LayerKind, call: LayerCall) -> list[Task]:
    """Return what context-parallel ranks exchange of a Mamba-2 layer, in either direction."""
    mamba = run.model.mamba2
    if kind.mixer is not Mixer.MAMBA2 or mamba is None or call.context_parallel_size == 1:
        return []
    group, per_width = run.layout.context_group(), call.tokens * call.element_bytes
    counts = Counter(mamba.exchanged(call))
    return [
        task
        for width, times in counts.items()
        for task in collective_task("all_to_all", per_width * width, group, Part.CONTEXT_PARALLEL, times)
    ]


def forward_pass(run: TrainingRun, kind: LayerKind) -> PassTasks:
    """Return one layer's forward pass; row-parallel outputs are summed over the tensor-parallel group."""
    model, call = run.model, run.layer_call(kind)
    operators = _operators(run, kind, call, FORWARD)
    tasks = operators.tasks + gate_of_layer(run, kind, call, FORWARD) + shared_side_kernels(model, kind, call, FORWARD)
    if run.compiled:
        tasks = fused_additions(tasks, FORWARD)
    tasks = tasks + bias_additions(model, kind, call)
    return with_forward_sums(run, kind, call, PassTasks(tasks, operators.overlaps))


def backward_pass(run: TrainingRun, kind: LayerKind) -> PassTasks:
    """Return one layer's backward pass without recomputation and gradient accumulation.

    The gradients of column-parallel inputs are summed over the tensor-parallel group.
    """
    model, call = run.model, run.layer_call(kind)
    operators = _operators(run, kind, call, BACKWARD)
    tasks = accumulating(run, operators.tasks)
    tasks = tasks + gate_of_layer(run, kind, call, BACKWARD) + shared_side_kernels(model, kind, call, BACKWARD)
    if run.compiled:
        tasks = fused_additions(tasks, BACKWARD)
    tasks = tasks + qkv_concatenation(model, kind, call)
    if run.lora is None:
        tasks += bias_gradients(model, kind, call)
    traffic = backward_sums(run, kind, call, tasks)
    return PassTasks(tasks + traffic.tasks, operators.overlaps + traffic.overlaps)


def weight_gradients(run: TrainingRun, backward: PassTasks) -> list[Task]:
    """Return the part of a backward pass that makes the gradients of weights, for which only the optimizer waits.

    Empty where the schedule does not split backward passes. Source: Qi et al. 2023, arXiv:2401.10241.
    """
    if not SCHEDULES[run.schedule].splits_backward:
        return []
    linear = [task for task in backward.tasks if task.operator.family == "linear"]
    if run.lora is not None:  # frozen weights have none
        linear = [task for task in linear if task.name in PRODUCTS]
    beside = [task for task in backward.tasks if task.name in ("gradient_accumulation", "bias_gradients")]
    return [weight_gradient(run.model, task) for task in linear] + beside
