"""Which layers of a chunk are computed again before their backward pass, and what of each of them.

Four choices of a layer: nothing, modules (Megatron-LM's selective recomputation), every second matrix product
(torchtitan's selective activation checkpointing per operation), and all of it.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.workloads.attention import CORE_OPERATORS
from predictor.workloads.attention_precision import core_of_layer
from predictor.workloads.experts import shared_expert_tasks
from predictor.workloads.layer import layer_operators
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.measured_kernels import FUSED_GATE, FUSED_NORM
from predictor.workloads.run import Recompute, RecomputeModule, TrainingRun
from predictor.workloads.switches import Attention, Ffn, LayerKind, Normalization
from predictor.workloads.tasks import FORWARD, NO_TASKS, TRAFFIC, Part, PassTasks, Task, collective_task
from predictor.workloads.transformer import Transformer

ACTIVATIONS = frozenset({"gelu", "swiglu", "fused_gate", FUSED_GATE, "bias_gelu", "activation_clamp"})
NORMS = frozenset({*(kind.operator for kind in Normalization), FUSED_NORM})
# What Megatron-LM's module mla_up_proj runs again. Source: Megatron-LM, core/transformer/multi_latent_attention.py,
# qkv_up_proj_and_rope_apply.
UP_PROJECTIONS = frozenset({"q_up_projection", "kv_up_projection", "head_copies"})


def of_layer(run: TrainingRun, is_recomputed: bool) -> TrainingRun:
    """Return a run whose every layer is recomputed, or keeps all its activations."""
    if is_recomputed:
        return replace(run, recompute_num_layers=None, recompute_every=1)
    return replace(run, recompute=Recompute.NONE, recompute_num_layers=None, recompute_every=1, recompute_modules=())


def recomputed_layers(run: TrainingRun, layers: int) -> int:
    """Return how many of a chunk's layers are recomputed.

    Source: Megatron-LM core/transformer/transformer_block.py, recompute_method "block": the first recompute_num_layers
    of each chunk; torchtitan distributed/activation_checkpoint.py: every layer whose number is a multiple.
    """
    if run.recompute is Recompute.NONE:
        return 0
    if run.recompute_num_layers is not None:
        return min(layers, run.recompute_num_layers)
    return layers // run.recompute_every


def _scaled(task: Task, times: float) -> Task:
    return task._replace(times=times, launches=task.launches * times / task.times)


def _until_last_saved(model: Transformer, kind: LayerKind, forward: PassTasks) -> PassTasks:
    """Return a layer's forward pass without what follows the last activation that its backward pass needs.

    That is the input of the FFN's second product: the product, the sum of its outputs over tensor-parallel ranks, its
    bias and the sum with the residual are left out. With dropout or a norm behind the product that is the last, and
    only the sum with the residual is left out. Experts are computed again whole.

    Source: PyTorch torch/utils/checkpoint.py, set_checkpoint_early_stop.
    """
    if kind.has_experts:
        return forward
    left_out, halved = {"residual_add": 1.0}, set()
    if kind.ffn is Ffn.DENSE and not (model.hidden_dropout or model.post_norms):
        left_out["ffn_down"] = 1.0
        halved = {"all_reduce", "reduce_scatter", "bias_additions"}
    tasks, of_others = [], 1.0 - 1.0 / kind.branches
    for task in forward.tasks:
        times = task.times * (of_others if task.name in halved else 1.0) - left_out.pop(task.name, 0.0)
        if times > 0.0:
            tasks.append(_scaled(task, times))
    remaining = {task.name for task in tasks}
    return PassTasks(
        tasks, [overlap for overlap in forward.overlaps if any(task.name in remaining for task in overlap.behind)]
    )


def _second_products(run: TrainingRun, kind: LayerKind, call: LayerCall, forward: PassTasks) -> PassTasks:
    """Return what is computed again where every second matrix product, attention and scatters are saved.

    A Llama layer multiplies by the weights of queries, keys, values, attention's output, gate, up and down, in this
    order: those of keys, of attention's output and of the FFN's up are computed again, and everything element-wise up
    to the input of the last product. Gathers before column-parallel products run again, scatters do not. Experts are
    grouped products, which are not among the saved operations.

    Source: torchtitan distributed/activation_checkpoint.py, _op_sac_save_list and _apply_op_sac ("every second mm").
    """
    again = {"qkv_projection": call.key_value_heads_per_rank * call.head_dim / call.qkv_width, "reduce_scatter": 0.0}
    if run.model.attention is Attention.FLASH:
        again |= dict.fromkeys(CORE_OPERATORS, 0.0)
    if not kind.has_experts:
        again |= {"ffn_up": 0.5 if run.model.activation.gated else 0.0, "ffn_down": 0.0}
    tasks = [(task, again.get(task.name, 1.0)) for task in _until_last_saved(run.model, kind, forward).tasks]
    return PassTasks([_scaled(task, task.times * share) for task, share in tasks if share], [])


def _in_module(module: RecomputeModule, task: Task, kind: LayerKind) -> float:
    """Return the share of a task of the forward pass that a module runs; attention's core is not asked for here."""
    experts = kind.has_experts
    if module is RecomputeModule.MLA_UP_PROJECTION:
        return float(task.name in UP_PROJECTIONS or (task.name == "rope" and kind.mixer.is_attention))
    if module is RecomputeModule.NORMS:
        return float(task.name in NORMS)
    if module in (RecomputeModule.MLP_ACTIVATION, RecomputeModule.MOE_ACTIVATION):
        return float(task.name in ACTIVATIONS and experts == (module is RecomputeModule.MOE_ACTIVATION))
    if module not in (RecomputeModule.MLP, RecomputeModule.MOE) or experts != (module is RecomputeModule.MOE):
        return 0.0
    if task.part is Part.TENSOR_PARALLEL:
        return 1.0 / kind.branches  # of two sums one belongs to the FFN
    if task.part in TRAFFIC:
        return float(task.part is Part.EXPERT_PARALLEL)
    return float(task.of_ffn)


def modules(run: TrainingRun) -> tuple[RecomputeModule, ...]:
    """Return the modules that selective recomputation covers: the core of attention unless others are named."""
    return run.recompute_modules or (RecomputeModule.CORE_ATTENTION,)


def _selected(run: TrainingRun, kind: LayerKind, call: LayerCall, forward: PassTasks) -> PassTasks:
    """Return the forward pass of the named modules of a layer.

    Source: Megatron-LM megatron/training/arguments.py, --recompute-modules; core/transformer/transformer_layer.py and
    moe/moe_layer.py.
    """
    names = modules(run)
    tasks, overlaps = [], []
    if RecomputeModule.CORE_ATTENTION in names:
        operators = layer_operators(run.model, kind)
        core = core_of_layer(run, kind, operators, call, FORWARD)
        tasks, overlaps = list(core.tasks), list(core.overlaps)
    if RecomputeModule.SHARED_EXPERTS in names and RecomputeModule.MOE not in names and kind.has_experts:
        tasks += shared_expert_tasks(run.model, call, FORWARD)
    for task in forward.tasks:
        share = max(_in_module(module, task, kind) for module in names)
        if share:
            tasks.append(_scaled(task, task.times * share))
    return PassTasks(tasks, overlaps)


def recomputation(run: TrainingRun, kind: LayerKind, forward: PassTasks) -> PassTasks:
    """Return what of a recomputed layer's forward pass runs again before its backward pass.

    Args:
        run: the run.
        kind: of the layer.
        forward: its forward pass with all weights there.
    """
    if run.recompute is Recompute.NONE:
        return NO_TASKS
    call = run.layer_call(kind)
    if run.recompute is Recompute.SELECTIVE:
        return _selected(run, kind, call, forward)
    if run.recompute is Recompute.PER_OP:
        return _second_products(run, kind, call, forward)
    if run.recompute_stops_early:
        forward = _until_last_saved(run.model, kind, forward)
    if not run.partition_activations or run.sequence_parallel:
        return forward
    shard = call.tokens * call.hidden_size * call.element_bytes // call.tensor_parallel_size
    gather = collective_task("all_gather", shard, run.layout.tensor_group(), Part.TENSOR_PARALLEL)
    return PassTasks(forward.tasks + gather, forward.overlaps)
