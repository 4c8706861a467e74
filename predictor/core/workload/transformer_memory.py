"""Memory of a transformer on one GPU, in bytes: activations, model states, gradient buffers.

States per parameter follow Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054, section 3.1, and for FSDP Zhao et al.
2023, arXiv:2304.11277: fp32 weights, gradients and moments of a rank's share, 16 bits only of units that are gathered.
"""

from __future__ import annotations

from collections.abc import Iterable

from predictor.core.blocks.experts import routed_tokens
from predictor.core.costs.work import ELEMENT_BYTES
from predictor.core.rows import FP32_BYTES, MASK_BYTES
from predictor.core.transforms.few_bits import PACKED_BYTES, SCALE_BYTES
from predictor.core.workload.layer import layer_of
from predictor.core.workload.losses import head_bytes, reference_head_bytes
from predictor.core.workload.low_precision import gather_bytes, wire_bytes
from predictor.core.workload.offload import updates_beside_weights
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Optimizer, Reference
from predictor.core.workload.sharding import shares_once
from predictor.core.workload.software import ON_DEEPSPEED, ON_MEGATRON_CORE
from predictor.core.workload.step_tasks import NO_MEMORY, BlockMemory, StageStates
from predictor.core.workload.transformer import LayerKind
from predictor.core.workload.vision_tower import tower_kept

# Adam in mixed precision keeps fp32 weights and two moments; in fp32 the weights are there already.
MIXED_PRECISION_STATE_BYTES = 3 * FP32_BYTES
FP32_STATE_BYTES = 2 * FP32_BYTES
# DeepSpeed's optimizer step flattens the gradients of a rank's share and widens them to fp32, in blocks of gigabytes
# that no cached activation can serve. Source: DeepSpeed, runtime/zero/stage_1_and_2.py, step().
WIDENED_GRADIENT_BYTES = ELEMENT_BYTES + FP32_BYTES
# Without ZeRO it widens the gradient of every parameter, and then flattens them into a copy.
# Source: DeepSpeed, runtime/fp16/fused_optimizer.py, FP16_Optimizer.step().
WIDENED_AND_FLATTENED_BYTES = 2 * FP32_BYTES
# NCCL's buffers of one communicator: some 24 channels with a connection each way, 4 MiB for protocol Simple and as much
# for LL and LL128 together. Source: NCCL, NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS in its documentation, src/init.cc.
COMMUNICATOR_BYTES = 24 * 2 * 8 * 2**20
# cuBLAS's workspaces: PyTorch allocates one per handle, 8 of 4 MiB from Hopper on and in deterministic runs, and the
# backward pass has a thread, so a handle, of its own; Transformer Engine one more of as much (4 MiB before Hopper).
# Source: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize; Transformer Engine,
# transformer_engine/pytorch/module/base.py, get_cublas_workspace_size_bytes.
WORKSPACE_BYTES = 32 * 2**20


def _ffn_gradients(run: TrainingRun, kind: LayerKind) -> float:
    """Return the bytes of gradients that exist at once in an FFN's backward pass.

    Those of its output, of the non-linearity's output and of the inner products, whose values are still kept.
    """
    call, model = run.layer_call(kind), run.model
    tokens, width, inner_width = float(call.tokens), call.hidden_size, call.ffn_width
    if kind.has_experts and model.experts is not None:
        tokens = routed_tokens(model.experts, call, run.layout)
        width = model.experts.token_width(call.hidden_size)
        inner_width = model.experts.expert_ffn_hidden_size // run.layout.expert_split
    inner = 3 if model.activation.gated else 2
    return tokens * (width + inner * inner_width) * call.element_bytes


def _pipe_outputs(run: TrainingRun) -> float:
    """Return a layer's share of the outputs that DeepSpeed's pipeline keeps of every micro-batch in flight.

    Source: DeepSpeed, runtime/pipe/engine.py, pipe_buffers["outputs"], freed after the backward pass.
    """
    layers = max(run.layers_per_stage) if run.layout.pipeline_parallel_size > 1 else 0
    call = run.call()
    return call.unsplit_tokens * call.hidden_size * call.element_bytes / layers if layers else 0.0


def _gathered_units(run: TrainingRun) -> int:
    """Return how many layers' weights are gathered at once: the one at work, and those that are gathered ahead."""
    return 1 + (run.prefetch_units if run.overlap_parameter_gather else 0)


def _gathered_bytes(run: TrainingRun, parameters: RankParameters) -> float:
    """Return the bytes of a unit's gathered weights: as they travelled, and narrowed where torch.autocast does so."""
    held, narrow = parameters.held.total, parameters.narrow.total
    narrowed = run.element_bytes if gather_bytes(run) > run.element_bytes else 0
    return wire_bytes(run, held, narrow) + (held - narrow) * narrowed


def layer_memory(run: TrainingRun, kind: LayerKind) -> BlockMemory:
    """Return what one layer of a kind holds."""
    kept, recomputed = layer_of(run, kind).kept_and_recomputed
    if run.framework in ON_DEEPSPEED:
        kept += _pipe_outputs(run)
    working = recomputed + _ffn_gradients(run, kind)
    if run.lora is not None and run.lora.expert_weights:  # the gradient of the experts' sums
        working += run.layer_parameters(kind).frozen_routed * run.element_bytes
    if run.zero_stage == 3 and not run.reshard_after_forward:
        return BlockMemory(kept, working, gathered=_gathered_bytes(run, run.layer_parameters(kind)))
    if run.zero_stage == 3:
        working += _gathered_units(run) * _gathered_bytes(run, run.layer_parameters(kind))
        working += _sharded_gradients(run, run.layer_parameters(kind).total)
    return BlockMemory(kept, working)


def _sharded_gradients(run: TrainingRun, parameters: int) -> float:
    """Return the bytes of whole gradients of ZeRO-3's unit at work, and of those on their way into a reduce-scatter.

    Where that overlaps, the gradients of the unit before are still on their way.

    Source: PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce.
    """
    if run.zero_ranks == 1:
        return 0.0
    copies = 2 if run.overlap_gradient_reduction else 1
    return float(parameters * (run.element_bytes + copies * run.gradient_bytes))


def edge_memory(run: TrainingRun, is_first: bool, is_last: bool) -> BlockMemory:
    """Return what the model's beginning and end hold, of the chunk that has them.

    The embedding keeps its dropout's mask, a vision tower what its layers do; the end keeps the input of its norm, and
    what its projection and its loss do. Source: Korthikanti et al. 2022, section 4.3.
    """
    if not (is_first or is_last):
        return NO_MEMORY
    call = run.call()
    activation = call.unsplit_tokens * call.hidden_size
    kept_first = float(activation * MASK_BYTES) if is_first and run.model.hidden_dropout else 0.0
    if is_first:
        kept_first += tower_kept(run)
    gathered = 0
    if run.zero_stage == 3:
        copies = 2 if run.reference_model is Reference.SEPARATE else 1
        gathered = copies * run.model.embedding_parameters(run.layout.tensor_parallel_size) * run.element_bytes
    if not is_last:
        return BlockMemory(kept_first=kept_first, gathered=float(gathered))
    normed = float((1 + run.model.num_mtp_layers) * activation * call.element_bytes)
    head = head_bytes(run)
    reference = reference_head_bytes(run) if run.reference_model is not None else 0.0
    return BlockMemory(
        kept_first=kept_first,
        kept_last=normed + head.kept + reference,
        deferred=head.deferred,
        gathered=float(gathered),
        ending=head.gradients,
    )


def _fused_gradients(run: TrainingRun, kind: LayerKind) -> float:
    """Return the bytes of the placeholders that stand for weight gradients which products add to their buffer.

    One per shape, in the weights' precision: autograd needs a tensor of the weight's shape.

    Source: Transformer Engine, transformer_engine/pytorch/module/base.py, get_dummy_wgrad; Megatron-LM,
    core/tensor_parallel/layers.py, grad_added_to_main_grad, makes one at a time.
    """
    parameters, experts = run.layer_parameters(kind), run.model.experts
    if run.lora is not None or experts is None:
        return float(parameters.total * run.element_bytes)
    held = experts.num_experts // run.layout.expert_parallel_size
    return float((parameters.dense + parameters.routed // held) * run.element_bytes)


def _gradient_buffers(run: TrainingRun, kinds: Iterable[LayerKind], parameters: RankParameters) -> float:
    """Return bytes of gradients on their way into a reduction, where they are not reduced where they lie.

    DeepSpeed copies them into buckets: one, or two where one fills while the other travels. Gradients in fp32, and
    those that products add up themselves, are accumulated in a buffer that is reduced in place, as Megatron-LM does.
    ZeRO-3's are part of a layer's memory.
    """
    if run.zero_stage == 3:
        return 0.0
    if (run.fp32_gradients or run.fused_gradient_accumulation) and run.framework not in ON_DEEPSPEED:
        return max([_fused_gradients(run, kind) for kind in kinds], default=0.0)
    if run.layout.gradient_ranks == 1:
        return 0.0
    copies = 2 if run.overlap_gradient_reduction else 1
    elements = min(run.gradient_bucket_elements, parameters.total)
    return float(copies * elements * run.gradient_bytes)


def _communicators(run: TrainingRun) -> float:
    """Return the bytes of NCCL's buffers: a communicator for each kind of group and each pipeline neighbour."""
    layout = run.layout
    sizes = (
        layout.tensor_parallel_size,
        layout.context_parallel_size,
        layout.expert_parallel_size,
        layout.gradient_ranks,
        layout.expert_split if layout.is_folded else 1,
    )
    groups = sum(size > 1 for size in sizes) + min(2, layout.pipeline_parallel_size - 1)
    return float(groups * COMMUNICATOR_BYTES)


def _optimizer_state_bytes(run: TrainingRun) -> float:
    """Return the bytes of optimizer state per parameter: as the run says, else Adam's in fp32."""
    if run.optimizer_state_bytes is not None:
        return run.optimizer_state_bytes
    return FP32_STATE_BYTES if run.element_bytes == FP32_BYTES else MIXED_PRECISION_STATE_BYTES


def _unkept(run: TrainingRun, parameters: RankParameters) -> float:
    """Return the bytes of second moments, which Muon does not keep of its matrices, where no state's size is said."""
    own = parameters.matrices
    return _unkept_bytes(run) * (_share(run, own) if run.zero_stage >= 1 else own.total)


def _unkept_bytes(run: TrainingRun) -> int:
    """Return the bytes of a matrix's parameter that Muon keeps less than Adam, where no state's size is said."""
    return FP32_BYTES if run.optimizer is Optimizer.MUON and run.optimizer_state_bytes is None else 0


def checkpoint_bytes(run: TrainingRun) -> float:
    """Return the bytes of a checkpoint: one copy of the weights and of what the optimizer keeps, adapters left out."""
    in_optimizer = run.fp32_parameters and run.element_bytes != FP32_BYTES
    weight_bytes = 0 if in_optimizer and run.lora is None else run.element_bytes
    state_bytes = _optimizer_state_bytes(run) if run.lora is None else 0.0
    unkept = _unkept_bytes(run) * run.model.matrix_parameters()
    return run.model.num_parameters() * (weight_bytes + state_bytes) - unkept


def _share(run: TrainingRun, parameters: RankParameters) -> float:
    """Return a rank's share of parameters that are shared out."""
    return parameters.dense / run.zero_ranks + parameters.routed / run.expert_zero_ranks


def _weights(run: TrainingRun, parameters: RankParameters, weight_bytes: int) -> float:
    """Return the bytes of the weights that a rank keeps; frozen ones have no fp32 copy."""
    base = None if run.lora is None else run.lora.quantized_base
    scales = 0.0 if base is None else parameters.narrow.total * SCALE_BYTES[base]
    if run.offload_parameters:
        return scales
    trained, everything, narrow = (
        _share(run, each) if run.zero_stage >= 3 else each.total
        for each in (parameters, parameters.held, parameters.narrow)
    )
    packed = 0.0 if base is None else narrow * PACKED_BYTES[base]
    return trained * weight_bytes + (everything - trained - narrow) * run.element_bytes + packed + scales


def _reference_weights(run: TrainingRun, parameters: RankParameters) -> float:
    """Return the bytes of a second model's weights, in the precision of the trained ones; FSDP and ZeRO-3 shard both.

    Source: huggingface/trl, trl/trainer/dpo_trainer.py (prepare_deepspeed, prepare_fsdp; dtype of the model).
    """
    if run.reference_model is not Reference.SEPARATE:
        return 0.0
    held = parameters.held
    if run.lora is not None:  # which it has not
        held = RankParameters(parameters.frozen_dense, parameters.frozen_routed)
    weight_bytes = FP32_BYTES if run.fp32_parameters else run.element_bytes
    if run.offload_parameters:
        return 0.0
    return weight_bytes * (_share(run, held) if run.zero_stage >= 3 else held.total)


def stage_states(
    run: TrainingRun, kinds: Iterable[LayerKind], parameters: RankParameters, cast_weights: float = 0.0
) -> StageStates:
    """Return the states of a stage's parameters, and its gradient buffers.

    Gradients that are scattered after the last micro-batch only are whole until then, in the reduction's precision.
    Source: torch distributed/pipelining/stage.py, backward_maybe_with_nosync (set_requires_gradient_sync(False));
    distributed/fsdp/_fully_shard/_fsdp_param_group.py, post_backward (to_accumulated_grad_if_needed).

    Args:
        run: the run.
        kinds: of the stage's layers.
        parameters: that one of its ranks computes with.
        cast_weights: bytes of the weights in low precision beside them.
    """
    whole = float(parameters.total)
    share = _share(run, parameters)
    state_bytes = _optimizer_state_bytes(run)
    weight_bytes, gradient_bytes = run.element_bytes, float(run.gradient_bytes)
    if run.fp32_parameters and run.element_bytes != FP32_BYTES:  # the optimizer's are the only ones
        weight_bytes, gradient_bytes = 0, FP32_BYTES
    if run.framework in ON_DEEPSPEED and run.fp32_gradients:
        # BF16_Optimizer accumulates in fp32 beside autograd's gradients
        gradient_bytes += run.element_bytes
    scatters_each = run.zero_stage >= 2 and not shares_once(run)
    buffers = _gradient_buffers(run, kinds, parameters)
    if run.framework in ON_DEEPSPEED and run.zero_stage < 3 and run.gradient_bytes < FP32_BYTES:
        widened = share * WIDENED_GRADIENT_BYTES if run.zero_stage else whole * WIDENED_AND_FLATTENED_BYTES
        buffers += widened * (1.0 - run.offload_optimizer)
    buffers += WORKSPACE_BYTES * (3 if run.framework in ON_MEGATRON_CORE else 2)
    on_gpu = 1.0 - run.offload_optimizer
    if updates_beside_weights(run) or (run.framework in ON_DEEPSPEED and run.zero_stage >= 2):  # leave as computed
        gradient_bytes *= on_gpu
    return StageStates(
        weights=_weights(run, parameters, weight_bytes) + cast_weights + _reference_weights(run, parameters),
        gradients=(share if scatters_each else whole) * gradient_bytes,
        optimizer=((share if run.zero_stage >= 1 else whole) * state_bytes - _unkept(run, parameters)) * on_gpu,
        buffers=buffers,
        communicators=_communicators(run),
    )
