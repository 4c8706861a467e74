"""What a compiler fuses: element-wise kernels of a layer and of the loss.

torch.compile traces a layer into one graph; matrix products, attention and collectives stay calls of libraries, and
what lies between two of them becomes one generated kernel: a norm with the addition before it, the rotation of queries
and keys, the FFN's activation with its product, the loss with the widening of its logits.

Source: PyTorch torch/_inductor/scheduler.py (fusion of point-wise kernels into reductions); torchtitan
models/llama3/infra/parallelize.py, apply_compile (one graph per layer), components/loss.py (the loss is compiled too).
"""

from __future__ import annotations

from dataclasses import replace

from predictor.core.costs.operator import Direction
from predictor.core.workload.layer_call import LayerCall
from predictor.core.workload.measured_kernels import FUSED_LOSS, as_measured
from predictor.core.workload.tasks import FORWARD, Task, operator_task, scalar_task, stream_task
from predictor.core.workload.transformer import Normalization, Transformer

# Passes over 16-bit logits. Forward one for the maximum and one for the sum of exponentials, backward a read and a
# write of the gradient; fp32 logits exist in registers alone.
LOSS_PASSES = 2
# Transformer Engine's kernel gives each row of logits to one block of threads, so that it follows the clock as kernels
# do that load one number at a time: of so many per logit and direction. On B200 it takes 3.3 ps per logit for both
# directions, 2.4 TB/s of its passes, which are 1.3 numbers at 2.6 ps (core/costs/scalar_kernels.py).
# Source: MooreThreads/SimuMax@e691807, configs/system/b200_bf16_ceperm.json, "ce_fusion": 0.2795 of 8,000 GiB/s;
# simu_tools/efficency_test/test_ce_permute_efficiency.py. Its small cases may wait for the host.
LOSS_SCALARS = 0.645


def compiled_model(model: Transformer) -> Transformer:
    """Return a model whose element-wise kernels are fused; a list of operators stays as it is."""
    if model.layer_operators is not None:
        return model
    rms = model.normalization is Normalization.RMS_NORM
    norm = Normalization.FUSED_RMS_NORM if rms else model.normalization
    return replace(model, fused_side_kernels=True, fused_rope=True, normalization=norm)


def native_loss(call: LayerCall, direction: Direction) -> Task:
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
