"""Output projections and losses: their kernels in both directions, and the bytes that they keep."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Direction
from predictor.core.rows import FP32_BYTES
from predictor.core.workload.measured_kernels import as_measured
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.tasks import BACKWARD, FORWARD, Task, operator_task, scalar_task, shaped_task, stream_task
from predictor.core.workload.transformer import Loss, Transformer

# Passes over 16-bit logits. Forward one for the maximum and one for the sum of exponentials, backward a read and a
# write of the gradient; fp32 logits exist in registers alone.
LOSS_PASSES = 2
# Transformer Engine's kernel gives each row of logits to one block of threads, so that it follows the clock as kernels
# do that load one number at a time: of so many per logit and direction. On B200 it takes 3.3 ps per logit for both
# directions, 2.4 TB/s of its passes, which are 1.3 numbers at 2.6 ps (core/costs/scalar_kernels.py).
# Source: MooreThreads/SimuMax@e691807, configs/system/b200_bf16_ceperm.json, "ce_fusion": 0.2795 of 8,000 GiB/s;
# simu_tools/efficency_test/test_ce_permute_efficiency.py. Its small cases may wait for the host.
LOSS_SCALARS = 0.645
FUSED_LOSS = "fused_cross_entropy"
HEAD_GRADIENT = "lm_head_gradient"  # streams over it, which a frozen projection does not have


def _separate_loss(call: LayerCall, direction: Direction, operator: str) -> list[Task]:
    """Return the loss: 16-bit logits are widened to fp32 first, and their gradient narrowed.

    Source: Megatron-LM ``fp16_lm_cross_entropy`` (default off); GPT-NeoX ``cross_entropy(..., _fp16=False)``.
    """
    logits = call.tokens * call.vocab_per_rank
    loss = operator_task(operator, call, direction)
    if call.element_bytes == call.logit_bytes:
        return [loss]
    return [stream_task("logits_to_fp32", logits * (call.element_bytes + call.logit_bytes), call), loss]


def _native_loss(call: LayerCall, direction: Direction) -> Task:
    """Return one direction of Megatron-LM's own fused cross entropy: a compiled kernel between two all-reduces.

    Forward three: logits are widened for their maximum, replaced by their exponentials for the sum, and divided by it.
    Backward one scales the softmax in its place and narrows it. Exponentials that are summed, and a softmax from which
    targets are subtracted, are written anew and copied back. Source: Megatron-LM core_v0.19.2, megatron/core,
    fusions/fused_cross_entropy.py (on copies: its next release) and tensor_parallel/cross_entropy.py.
    """
    logits, wide, narrow = call.tokens * call.vocab_per_rank, call.logit_bytes, call.element_bytes
    if direction is FORWARD:
        return stream_task(FUSED_LOSS, logits * (narrow + 7 * wide), call, launches=3)
    return stream_task(FUSED_LOSS, logits * (4 * wide + narrow), call, launches=1)


def fused_loss(model: Transformer, call: LayerCall, direction: Direction, compiled: bool) -> Task:
    """Return one direction of a cross entropy in one kernel, compiled or Transformer Engine's own.

    Systems measure the compiled one. Transformer Engine writes the gradient over the logits forward, with as many
    passes in all. Source: Transformer Engine, transformer_engine/common/triton/cross_entropy.py; PyTorch
    torch/_inductor.
    """
    logits = call.tokens * call.vocab_per_rank
    size_bytes = logits * LOSS_PASSES * call.element_bytes
    if compiled:
        by_bytes = stream_task(FUSED_LOSS, size_bytes, call, launches=2)
        return as_measured(model, by_bytes, operator_task(FUSED_LOSS, call, direction))
    return scalar_task(FUSED_LOSS, logits * LOSS_SCALARS, size_bytes, kernels=1, launches=2)


def tokens_per_chunk(call: LayerCall) -> int:
    """Return the tokens whose logits exist at once beside a fused projection: about as many bytes as hidden states.

    >>> tokens_per_chunk(LayerCall(4, 4096, 4096, 32, 11008, 32000, 1))
    2048
    """
    share = ceil(call.tokens / ceil(call.vocab_per_rank / call.hidden_size))
    return min(1 << (share - 1).bit_length(), call.tokens)


def _fused_linear(call: LayerCall, direction: Direction) -> list[Task]:
    """Return a projection and its loss in chunks of tokens: the forward pass makes all gradients.

    One kernel, laid out as Transformer Engine's is, replaces a chunk's logits by their gradient; fp32 numbers exist in
    its registers alone. Products follow with the weight and with the hidden states; the latter adds to a sum in the
    weight's precision, which is zeroed first and which every chunk reads and writes. Backward both gradients are scaled
    in place, since trainers divide the loss by the tokens of a batch.

    Source: Hsu et al. 2024, arXiv:2410.10989, section 3.2; linkedin/Liger-Kernel,
    src/liger_kernel/ops/fused_linear_cross_entropy.py, cross_entropy.py; transformers, loss/loss_utils.py
    (num_items_in_batch).
    """
    hidden_bytes = call.tokens * call.hidden_size * call.element_bytes
    weight_bytes = call.vocab_per_rank * call.hidden_size * call.element_bytes
    if direction is BACKWARD:
        scaled = stream_task("hidden_gradient", 2 * hidden_bytes, call)
        return [scaled, stream_task(HEAD_GRADIENT, 2 * weight_bytes, call)]
    chunk = tokens_per_chunk(call)
    chunks = call.tokens / chunk
    shape, logits = (chunk, call.hidden_size, call.vocab_per_rank), chunk * call.vocab_per_rank
    size_bytes = logits * 2 * LOSS_PASSES * call.element_bytes
    loss = scalar_task(FUSED_LOSS, logits * 2 * LOSS_SCALARS, size_bytes, kernels=1, launches=2)
    return [
        shaped_task("lm_head", shape, FORWARD, chunks),
        loss._replace(times=chunks, launches=loss.launches * chunks),
        shaped_task("lm_head", shape, BACKWARD, chunks),
        stream_task("hidden_gradient", hidden_bytes, call),
        stream_task(HEAD_GRADIENT, (1 + chunks) * weight_bytes, call),
    ]


def head_tasks(run: TrainingRun, direction: Direction) -> list[Task]:
    """Return the output projection and the loss as a run computes it; a compiler fuses torch's own."""
    call, loss = run.call(), run.model.loss
    if loss is Loss.FUSED_LINEAR:
        tasks = _fused_linear(call, direction)
    elif run.has_fused_loss:
        tasks = [operator_task("lm_head", call, direction), fused_loss(run.model, call, direction, run.compiled)]
    elif loss is Loss.FUSED_NATIVE:
        tasks = [operator_task("lm_head", call, direction), _native_loss(call, direction)]
    else:
        tasks = [operator_task("lm_head", call, direction), *_separate_loss(call, direction, loss.operator)]
    if run.model.lm_head_bias and direction is (FORWARD if loss is Loss.FUSED_LINEAR else BACKWARD):
        tasks.append(stream_task("lm_head_bias", call.tokens * call.vocab_per_rank * call.element_bytes, call))
    return tasks


def _is_compiled(run: TrainingRun) -> bool:
    """Return whether a compiler fuses the loss."""
    return run.compiled and run.model.loss is not Loss.TORCH_EAGER


def _bytes_per_logit(run: TrainingRun) -> int:
    """Return the bytes that a loss keeps of each logit: 16-bit and fp32 ones, or, compiled, logits and their gradients.

    Megatron-LM's own fused loss needs fp32 logits twice: it overwrites them inside compiled graphs that also sum over
    them.

    Source: Megatron-LM's cross entropy, which keeps its fp32 softmax, and core/fusions/fused_cross_entropy.py, on what
    Inductor does with such graphs; torchtitan, torchtitan/components/loss.py, which compiles the loss.
    """
    call = run.call()
    if _is_compiled(run):
        return 2 * call.element_bytes
    if run.has_fused_loss or call.element_bytes == FP32_BYTES:
        return call.element_bytes
    return call.element_bytes + FP32_BYTES * (2 if run.model.loss is Loss.FUSED_NATIVE else 1)


def reference_head_bytes(run: TrainingRun) -> float:
    """Return the logits of a reference's pass, which stand beside those that the model keeps."""
    call = run.call()
    return float(call.tokens * call.vocab_per_rank * _bytes_per_logit(run)) if run.model.has_lm_head else 0.0


def _gradients_per_logit(run: TrainingRun) -> int:
    """Return the bytes of gradients beside the kept logits while torch's own loss runs backward, op by op.

    Both are in fp32 and as large as the logits: that of the logarithms of the softmax, zero but for the targets, and
    that of the widened logits. Source: PyTorch aten/src/ATen/native/cuda/NLLLoss2d.cu and SoftMax.cu, of
    torch/nn/functional.py, cross_entropy: nll_loss of log_softmax.
    """
    is_eager = run.model.loss in (Loss.TORCH, Loss.TORCH_EAGER) and not _is_compiled(run)
    return 2 * FP32_BYTES if is_eager else 0


class HeadBytes(NamedTuple):
    """Bytes of the output projection and its loss.

    Attributes:
        kept: from the forward to the backward pass.
        deferred: the part of it that the gradients of weights need.
        gradients: that exist beside it in the loss's backward pass.
    """

    kept: float
    deferred: float
    gradients: float = 0.0


def head_bytes(run: TrainingRun) -> HeadBytes:
    """Return what the output projection and its loss hold.

    They keep the projection's input and logits; gradients of weights need the input and 16-bit gradients of the logits.
    Fused in one, they keep the gradients of hidden states and weight beside the input and the logits of a chunk.
    """
    call, model = run.call(), run.model
    predictions = 1 + model.num_mtp_layers
    inputs = predictions * call.unsplit_tokens * call.hidden_size * call.element_bytes
    if not model.has_lm_head:
        return HeadBytes(float(inputs), float(inputs))
    if model.loss is Loss.FUSED_LINEAR:
        trains = run.lora is None or run.lora.train_embeddings
        weights = predictions * call.hidden_size * trains + tokens_per_chunk(call)
        return HeadBytes(float(2 * inputs + weights * call.vocab_per_rank * call.element_bytes), 0.0)
    logits = predictions * call.tokens * call.vocab_per_rank
    return HeadBytes(
        kept=float(inputs + logits * _bytes_per_logit(run)),
        deferred=float(inputs + logits * call.element_bytes),
        gradients=float(logits * _gradients_per_logit(run)),
    )
