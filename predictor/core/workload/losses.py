"""Losses: the kernels of each cross entropy behind the output projection, and the bytes of logits that it keeps."""

from __future__ import annotations

from predictor.core.costs.operator import Direction
from predictor.core.rows import FP32_BYTES
from predictor.core.workload.layer_call import LayerCall
from predictor.core.workload.measured_kernels import FUSED_LOSS, as_measured
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.tasks import FORWARD, Task, operator_task, scalar_task, stream_task
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
        return stream_task("fused_cross_entropy", logits * (narrow + 7 * wide), call, launches=3)
    return stream_task("fused_cross_entropy", logits * (4 * wide + narrow), call, launches=1)


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
    return scalar_task("fused_cross_entropy", logits * LOSS_SCALARS, size_bytes, kernels=1, launches=2)


def loss_tasks(run: TrainingRun, direction: Direction) -> list[Task]:
    """Return the loss as a run computes it; a compiler fuses torch's own."""
    if run.has_fused_loss:
        return [fused_loss(run.model, run.call(), direction, run.compiled)]
    if run.model.loss is Loss.FUSED_NATIVE:
        return [_native_loss(run.call(), direction)]
    return _separate_loss(run.call(), direction, run.model.loss.operator)


def bytes_per_logit(run: TrainingRun) -> int:
    """Return the bytes that a loss keeps of each logit: 16-bit and fp32 ones, or, compiled, logits and their gradients.

    Megatron-LM's own fused loss needs fp32 logits twice: it overwrites them inside compiled graphs that also sum over
    them.

    Source: Megatron-LM's cross entropy, which keeps its fp32 softmax, and core/fusions/fused_cross_entropy.py, on what
    Inductor does with such graphs; torchtitan, torchtitan/components/loss.py, which compiles the loss.
    """
    call = run.call()
    if run.compiled:
        return 2 * call.element_bytes
    if run.has_fused_loss or call.element_bytes == FP32_BYTES:
        return call.element_bytes
    return call.element_bytes + FP32_BYTES * (2 if run.model.loss is Loss.FUSED_NATIVE else 1)
