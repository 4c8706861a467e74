"""What a transformer holds in a GPU's memory, in bytes: activations tensor by tensor, model states, gradient buffers.

States per parameter follow Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054, section 3.1. Activations of a GPT layer
without biases in flash attention add up to those of Korthikanti et al. 2022, arXiv:2205.05198, sections 4.1 to 4.2:
s·b·h·(10 + 24/t + 5·a·s/(h·t)), and s·b·h/t·(34 + 5·a·s/h) with sequence parallelism, with one difference: they count a
key-value pair per query head, and this counts what the architecture has.
"""

from __future__ import annotations

from collections.abc import Iterable

from predictor.workloads.attention import MASK_BYTES
from predictor.workloads.experts import routed_tokens
from predictor.workloads.layer import sized
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.layout import Layout
from predictor.workloads.low_precision_memory import kept_bytes_added
from predictor.workloads.run import FP32_BYTES, RankParameters, Recompute, TrainingRun
from predictor.workloads.step_tasks import NO_MEMORY, BlockMemory, StageStates
from predictor.workloads.transformer import Attention, LayerKind, Normalization, Transformer

# Adam in mixed precision keeps fp32 weights and two moments; in fp32 the weights are there already.
MIXED_PRECISION_STATE_BYTES = 3 * FP32_BYTES
FP32_STATE_BYTES = 2 * FP32_BYTES


def _norms(model: Transformer) -> int:
    """Return the activations that a layer's norms keep: their inputs, and where RMSNorm is unfused its product too."""
    inputs = 1 if model.parallel_residual else 2
    inputs += 2 if model.post_norms else 0
    return inputs * (2 if model.normalization is Normalization.RMS_NORM else 1)


def _scores(model: Transformer, call: LayerCall) -> float:
    """Return the bytes that attention keeps between its projections, queries, keys, values and output aside.

    Softmax's output; with dropout its mask and its output as well. Flash attention keeps one fp32 sum per row instead.
    """
    rows = call.micro_batch_size * call.heads_per_rank * call.sequence_per_rank
    if model.attention is Attention.FLASH:
        return rows * float(FP32_BYTES)
    per_score = call.element_bytes
    if model.attention_dropout:
        per_score += MASK_BYTES + call.element_bytes
    return float(rows * call.sequence_per_rank * per_score)


def _attention(model: Transformer, call: LayerCall) -> float:
    """Return the bytes that attention keeps without its scores: projections' inputs and outputs, and masks."""
    queries = call.qkv_width * (2 if model.qk_norm else 1)
    split = call.tokens * (queries + call.attention_width) * call.element_bytes
    unsplit = call.unsplit_tokens * call.hidden_size
    return split + unsplit * (call.element_bytes + (MASK_BYTES if model.hidden_dropout else 0))


def _inner(model: Transformer, tokens: float, width: int, element_bytes: int) -> float:
    """Return the bytes that an FFN keeps between its matrices: the activation's inputs and its output."""
    tensors = 2
    if model.activation.gated:
        tensors = 3 if model.fused_side_kernels else 4  # unfused, SiLU's own output is kept for the product
    return tokens * width * tensors * element_bytes


def _ffn(model: Transformer, call: LayerCall) -> float:
    unsplit = call.unsplit_tokens * call.hidden_size
    mask = MASK_BYTES if model.hidden_dropout else 0
    return _inner(model, call.tokens, call.ffn_width, call.element_bytes) + unsplit * (call.element_bytes + mask)


def _experts(model: Transformer, call: LayerCall, layout: Layout) -> float:
    """Return the bytes that experts keep: tokens in the order of their experts, and the experts' outputs."""
    experts = model.experts
    assert experts is not None
    tp, routed = call.tensor_parallel_size, routed_tokens(experts, call, layout)
    kept = _inner(model, routed, experts.expert_ffn_hidden_size // tp, call.element_bytes)
    kept += 2 * routed * call.hidden_size * call.element_bytes
    kept += call.tokens * experts.num_experts * FP32_BYTES
    kept += _inner(model, call.tokens, experts.shared_expert_ffn_hidden_size // tp, call.element_bytes)
    return kept + call.unsplit_tokens * call.hidden_size * call.element_bytes


def _checkpoint(run: TrainingRun) -> float:
    """Return the bytes of a layer's input, which full recomputation keeps."""
    call = run.call()
    split = run.partition_activations and not run.sequence_parallel
    tokens = call.tokens / call.tensor_parallel_size if split else call.unsplit_tokens
    return float(tokens * call.hidden_size * call.element_bytes)


def layer_memory(run: TrainingRun, kind: LayerKind) -> BlockMemory:
    """Return what one layer of a kind holds."""
    model, call = run.model, sized(run, kind)
    norms = _norms(model) * call.unsplit_tokens * call.hidden_size * call.element_bytes
    ffn = _experts(model, call, run.layout) if kind.has_experts else _ffn(model, call)
    scores = _scores(model, call)
    kept, working = norms + _attention(model, call) + scores + ffn + kept_bytes_added(run, kind, call), 0.0
    if run.recompute is Recompute.FULL:
        kept, working = _checkpoint(run), kept
    elif run.recompute is Recompute.SELECTIVE:
        kept, working = kept - scores, scores
    if run.zero_stage == 3:
        gathered_layers = 2 if run.overlap_parameter_gather else 1
        working += gathered_layers * run.layer_parameters(kind).total * run.element_bytes
    return BlockMemory(kept, working)


def edge_memory(run: TrainingRun, is_first: bool, is_last: bool) -> BlockMemory:
    """Return what the model's beginning and end hold, of the chunk that has them.

    The embedding keeps its dropout's mask; the end keeps the inputs of its norm and projection, logits and fp32 logits.
    The gradients of its weights need their input and the 16-bit gradients of the logits.

    Source: Korthikanti et al. 2022, section 4.3, and Megatron-LM's cross entropy, which keeps its fp32 softmax.
    """
    if not (is_first or is_last):
        return NO_MEMORY
    call = run.call()
    activation = call.unsplit_tokens * call.hidden_size
    mask = activation * MASK_BYTES if is_first and run.model.hidden_dropout else 0
    gathered = 0
    if run.zero_stage == 3:
        gathered = run.model.embedding_parameters(run.layout.tensor_parallel_size) * run.element_bytes
    if not is_last:
        return BlockMemory(kept_first=float(mask), gathered=float(gathered))
    inputs, logits = activation * call.element_bytes, call.tokens * call.vocab_per_rank
    widened = FP32_BYTES if call.element_bytes != FP32_BYTES else 0
    return BlockMemory(
        kept_first=float(mask),
        kept_last=float(2 * inputs + logits * (call.element_bytes + widened)),
        deferred=float(inputs + logits * call.element_bytes),
        gathered=float(gathered),
    )


def _gradient_buffers(run: TrainingRun, kinds: Iterable[LayerKind], parameters: RankParameters) -> float:
    """Return bytes of gradients on their way into a reduction, where they are not reduced where they lie.

    DeepSpeed copies them into buckets: one, or two where one fills while the other travels. ZeRO-3 holds the whole
    gradient of the layer at work, and of the next one where that overlaps. fp32 gradients are accumulated in a buffer
    that is reduced in place, as Megatron-LM does.
    """
    if run.layout.gradient_ranks == 1 or (run.fp32_gradients and run.zero_stage < 3):
        return 0.0
    copies = 2 if run.overlap_gradient_reduction else 1
    elements = min(run.gradient_bucket_elements, parameters.total)
    if run.zero_stage == 3:
        embedding = run.model.embedding_parameters(run.layout.tensor_parallel_size)
        elements = max(embedding, *[run.layer_parameters(kind).total for kind in kinds])
    return float(copies * elements * run.gradient_bytes)


def stage_states(
    run: TrainingRun, kinds: Iterable[LayerKind], parameters: RankParameters, cast_weights: float = 0.0
) -> StageStates:
    """Return the states of a stage's parameters, and its gradient buffers.

    Args:
        run: the run.
        kinds: of the stage's layers.
        parameters: that one of its ranks computes with.
        cast_weights: bytes of the weights in low precision beside them.
    """
    whole = float(parameters.total)
    share = parameters.dense / run.zero_ranks + parameters.routed / run.expert_zero_ranks
    state_bytes = FP32_STATE_BYTES if run.element_bytes == FP32_BYTES else MIXED_PRECISION_STATE_BYTES
    return StageStates(
        weights=(share if run.zero_stage >= 3 else whole) * run.element_bytes + cast_weights,
        gradients=(share if run.zero_stage >= 2 else whole) * run.gradient_bytes,
        optimizer=(share if run.zero_stage >= 1 else whole) * state_bytes,
        buffers=_gradient_buffers(run, kinds, parameters),
    )
