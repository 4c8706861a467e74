"""Host memory: optimizer states that the CPU updates, gradients and activations that travel there and back."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from predictor.core.blocks.experts import routed_tokens
from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs.host_adam import DEEPSPEED_ADAM, GRADIENT_SCALING, SCALAR_ADAM, TORCH_ADAM
from predictor.core.costs.host_copy import PAGEABLE_COPY, PINNED_COPY
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Operator
from predictor.core.folds import KeptBytes
from predictor.core.rows import FP32_BYTES, Module, Role
from predictor.core.transforms.recomputation import modules
from predictor.core.workload.attention_precision import attention_elements, attention_recipe
from predictor.core.workload.layer import kept_of_layer
from predictor.core.workload.low_precision import recipe_of
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import OffloadModule, Recompute, RecomputeModule
from predictor.core.workload.software import ON_DEEPSPEED, WITH_DEEPSPEED
from predictor.core.workload.step_tasks import BlockMemory, HostUpdate
from predictor.core.workload.switches import Ffn
from predictor.core.workload.tasks import FORWARD, TRAFFIC, Overlap, Part, Passes, PassTasks, Task, scaled

# Layers' activations on the GPU while backward passes run: those at work, and those that arrive meanwhile.
# Source: Transformer Engine pytorch/cpu_offload.py, AsyncDoubleBufferGroupOffloadHandler.
BUFFERED_LAYERS = 2


# Megatron-LM's fine-grained offloading moves the inputs of named modules, as they are kept. Source: Megatron-LM
# megatron/core/transformer/transformer_config.py, offload_modules; attention.py and moe/experts.py, which save inside
# fine_grained_activation_offload's hooks.
def _input_bytes(run: TrainingRun, kind: LayerKind, call: LayerCall) -> float:
    """Return the bytes per element of a product's input: as it was cast, or where adapters read it in 16 bits."""
    recipe = recipe_of(run, kind)
    return float(call.element_bytes) if recipe is None or run.lora is not None else recipe.kept


def _of_attention(run: TrainingRun, kind: LayerKind, call: LayerCall, kept: KeptBytes) -> dict[OffloadModule, float]:
    """Return the inputs of the modules of a layer's attention; other token mixers have none of them."""
    if not kind.mixer.is_attention:
        return {}
    element, again = call.element_bytes, modules(run) if run.recompute is Recompute.SELECTIVE else ()
    stream = float(call.unsplit_tokens * call.hidden_size)
    operands, outputs = attention_elements(run.model, kind, call)
    recipe, per_input = attention_recipe(run, kind), _input_bytes(run, kind, call)
    core = operands * (element if recipe is None else recipe.kept)
    if recipe is None and RecomputeModule.MLA_UP_PROJECTION in again:
        core = 0.0
    normed = 0.0 if RecomputeModule.NORMS in again else stream * per_input
    return {
        OffloadModule.ATTENTION_NORM: stream * element,
        OffloadModule.QKV_PROJECTION: normed + kept.of(Role.LATENT),
        OffloadModule.CORE_ATTENTION: core,
        OffloadModule.ATTENTION_OUTPUT: outputs * per_input,
    }


def _of_ffn(run: TrainingRun, kind: LayerKind, call: LayerCall, kept: KeptBytes) -> dict[OffloadModule, float]:
    """Return the inputs of the FFN's norm, and of the modules of routed experts."""
    has_norm = kind.ffn is not Ffn.NONE and not run.model.parallel_residual
    found = {OffloadModule.MLP_NORM: float(call.unsplit_tokens * call.hidden_size * call.element_bytes * has_norm)}
    experts = run.model.experts
    if not kind.has_experts or experts is None:
        return found
    rows = routed_tokens(experts, call, run.layout) * experts.token_width(call.hidden_size)
    tokens = rows * _input_bytes(run, kind, call) if kept.of(Role.ROUTED) else 0.0  # none where all of it runs again
    inner, activated = (kept.of(role, modules=(Module.EXPERTS,)) for role in (Role.INNER, Role.ACTIVATED))
    return found | {
        OffloadModule.EXPERT_UP: tokens,
        OffloadModule.MOE_ACTIVATION: inner,
        OffloadModule.FUSED_EXPERTS: tokens + inner + activated,
    }


def inputs_of_modules(run: TrainingRun, kind: LayerKind) -> float:
    """Return the bytes of the inputs of a run's offloaded modules that a layer keeps."""
    call, kept = run.layer_call(kind), kept_of_layer(run, kind)
    inputs = _of_attention(run, kind, call, kept) | _of_ffn(run, kind, call, kept)
    return sum(inputs.get(module, 0.0) for module in run.offload_modules)


class Update(NamedTuple):
    """Parameters that a rank updates on its GPU, and the update of the others on the host.

    Attributes:
        returned: copies of the GPU's new weights to host memory, where it keeps none.
    """

    on_gpu: int
    on_host: HostUpdate | None
    returned: list[Task]


def host_copy(name: str, size_bytes: float, pinned: bool = True) -> list[Task]:
    """Return a copy between host memory and the GPU, in either direction; none of nothing."""
    if size_bytes <= 0:
        return []
    copy = PINNED_COPY if pinned else PAGEABLE_COPY
    return [Task(name, copy, FORWARD, (ceil(size_bytes),), 1.0, Part.HOST_LINK, 0)]


def _on_deepspeed(run: TrainingRun) -> bool:
    """Return whether DeepSpeed keeps states in host memory; weights there are FSDP's unless DeepSpeed is named."""
    return run.framework in (ON_DEEPSPEED if run.offload_parameters else WITH_DEEPSPEED)


def updates_beside_weights(run: TrainingRun) -> bool:
    """Return whether FSDP keeps weights, gradients and states in host memory, where they are updated.

    Source: torch distributed/fsdp/api.py, CPUOffload; distributed/fsdp/_fully_shard/_fsdp_api.py, CPUOffloadPolicy.
    """
    return run.offload_parameters and not _on_deepspeed(run)


def _adam(run: TrainingRun) -> Operator:
    if not _on_deepspeed(run):
        return TORCH_ADAM
    return DEEPSPEED_ADAM if run.host_simd else SCALAR_ADAM


def update(run: TrainingRun, parameters: int) -> Update:
    """Return how a rank updates so many parameters, whose states may be in host memory in part.

    Gradients travel as the fp32 that the CPU adds to its states. Weights come back in the precision of the model, of
    DeepSpeed in fp32, since it narrows them on the GPU; its gradients are unscaled on the CPU first. Where weights are
    in host memory they stay there; FSDP's gradients are there already, and the CPU clips them.

    Source: Ren et al. 2021, arXiv:2101.06840, section 4; DeepSpeed deepspeed/runtime/zero/stage_1_and_2.py, step and
    async_inplace_copy_grad_to_fp32_buffer_from_gpu; Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py,
    whose CPU optimizer is PyTorch's (core/optimizer/__init__.py).
    """
    moved, pinned = round(parameters * run.offload_optimizer), run.pinned_offload
    returned = 0 if not run.offload_parameters else (parameters - moved) * run.element_bytes
    if not moved:
        return Update(parameters, None, host_copy("weights_to_host", returned, pinned))
    is_deepspeed, are_there = _on_deepspeed(run), updates_beside_weights(run)
    operators = [GRADIENT_SCALING, _adam(run)] if is_deepspeed or are_there else [_adam(run)]
    shape = (moved, run.host_threads or 0, min(run.layout.num_gpus, run.layout.gpus_per_node))
    weight_bytes = 0 if run.offload_parameters else FP32_BYTES if is_deepspeed else run.element_bytes
    on_host = HostUpdate(
        host_copy("gradients_to_host", 0 if are_there else moved * FP32_BYTES, pinned),
        [Task(operator.name, operator, FORWARD, shape, 1.0, Part.OPTIMIZER, 0) for operator in operators],
        host_copy("weights_from_host", moved * weight_bytes, pinned),
        run.overlap_optimizer_offload,
    )
    return Update(parameters - moved, on_host, host_copy("weights_to_host", returned, pinned))


def with_host_gradients(run: TrainingRun, parameters: RankParameters, backward: PassTasks) -> PassTasks:
    """Return a backward pass with what travels of gradients that are kept in host memory.

    Every micro-batch's share is added to the sum of those before it, which travels to the GPU, and back but for the
    last, whose sum the update sends. FSDP sends every micro-batch's share, in the weights' precision. Copies of pinned
    memory run beside the pass; others block the host.

    Source: DeepSpeed deepspeed/runtime/zero/stage_1_and_2.py, async_accumulate_grad_in_cpu_via_gpu; stage3.py,
    partition_grads; torch distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce.
    """
    if not run.offload_optimizer and not run.offload_parameters:
        return backward
    held = parameters.dense / run.zero_ranks + parameters.routed / run.expert_zero_ranks
    if updates_beside_weights(run):
        copies = host_copy("gradients_to_host", held * (FP32_BYTES if run.fp32_parameters else run.element_bytes))
    else:
        is_kept = run.offload_optimizer and _on_deepspeed(run) and run.zero_stage >= 2
        further = 1.0 - 1.0 / run.num_micro_batches if is_kept else 0.0
        moved = held * run.offload_optimizer * run.element_bytes * further
        names = ("gradients_from_host", "gradients_to_host")
        copies = [copy for name in names for copy in host_copy(name, moved, run.pinned_offload)]
    if not copies:
        return backward
    return _overlapped(backward, copies) if run.pinned_offload else _in_turn(backward, copies)


def offloaded_share(run: TrainingRun, layers: int) -> float:
    """Return the share of a chunk's activations that travel to host memory."""
    if run.offload_activations:
        return 1.0
    return min(1.0, run.offload_activation_layers / layers) if layers else 0.0


def _overlapped(step_pass: PassTasks, copies: list[Task]) -> PassTasks:
    """Return a pass with copies beside what it computes."""
    behind = [task for task in step_pass.tasks if task.part not in TRAFFIC]
    return PassTasks(step_pass.tasks, [Overlap(copies, behind, own_link=True), *step_pass.overlaps])


def _in_turn(step_pass: PassTasks, copies: list[Task]) -> PassTasks:
    return PassTasks(step_pass.tasks + copies, step_pass.overlaps)


def _moved(run: TrainingRun, kind: LayerKind, kept: float, share: float) -> tuple[float, float]:
    """Return the bytes of a layer's activations that travel to host memory, and those of them on the GPU at once."""
    if run.offload_modules:
        moved = min(kept, inputs_of_modules(run, kind))
        return moved, BUFFERED_LAYERS * moved
    layers = BUFFERED_LAYERS if run.offload_activations else min(BUFFERED_LAYERS, run.offload_activation_layers)
    return kept * share, layers * kept


def on_gpu_beside_host(run: TrainingRun, kind: LayerKind, memory: BlockMemory, share: float = 0.0) -> BlockMemory:
    """Return what a layer holds on the GPU; some of its activations are on the host, as of ``with_offloading``."""
    moved, on_gpu = _moved(run, kind, memory.kept, share)
    return memory._replace(kept=memory.kept - moved, working=memory.working + on_gpu) if moved else memory


def with_offloading(
    run: TrainingRun, kind: LayerKind, passes: Passes, memory: BlockMemory, share: float
) -> tuple[Passes, BlockMemory]:
    """Return a layer's passes and memory where some of its activations are in host memory between them.

    The copies of some layers are spread over the computing of all, that of a layer which is computed again over both
    passes. Unsloth's checkpoints are copied in the stream that computes. Source: Transformer Engine
    pytorch/cpu_offload.py, layer_window_map; huggingface/trl, trl/models/activation_offloading.py (use_streams);
    LLaMA-Factory, model/model_utils/checkpointing.py, UnslothGradientCheckpointing.

    Args:
        run: the run.
        kind: of the layer.
        passes: of the layer.
        memory: what it holds.
        share: of its activations that travel, where no modules are named.
    """
    moved, _ = _moved(run, kind, memory.kept, share)
    if not moved:
        return passes, memory
    memory = on_gpu_beside_host(run, kind, memory, share)
    forward, recompute, backward = passes
    away, back = host_copy("activations_to_host", moved), host_copy("activations_from_host", moved)
    if not run.overlap_activation_offload:
        return Passes(_in_turn(forward, away), recompute, _in_turn(backward, back)), memory
    again = recompute.flops / (recompute.flops + backward.flops) if run.recompute is Recompute.FULL else 0.0
    if again:
        recompute = _overlapped(recompute, scaled(back, again))
    return Passes(_overlapped(forward, away), recompute, _overlapped(backward, scaled(back, 1.0 - again))), memory
