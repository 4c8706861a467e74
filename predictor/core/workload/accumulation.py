"""Adding weight gradients to those of earlier micro-batches."""

from __future__ import annotations

from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs.operator import DATA_GRADIENT, FP32_WEIGHT_GRADIENT, with_backward
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.tasks import Task, share_of, stream_task


def gradient_accumulation(run: TrainingRun, kind: LayerKind) -> Task:
    """Return the addition of a layer's weight gradients to those of earlier micro-batches: of all but the first."""
    call = run.layer_call(kind)
    gradient_bytes = 2 * run.gradient_bytes + call.element_bytes  # the sum is read and written, the new one read
    dense, routed, *_ = run.layer_parameters(kind)
    if run.zero_stage >= 2:  # only a rank's own share is kept, and so added up
        dense, routed = dense // run.zero_ranks, routed // run.expert_zero_ranks
    return stream_task("gradient_accumulation", (dense + routed) * gradient_bytes, call, launches=0)


# Products of weight gradients that add to fp32 sums take longer than forward products of the same FLOPs: 1.05 times on
# an A100, 1.07 to 1.09 on a B200, at 4,096 tokens. Source: MooreThreads/SimuMax@e691807, configs/system/a100_pcie.json
# and b200_bf16_ceperm.json (layout NT, accumulate, fp32), Transformer Engine's layers. What they do more is to read and
# widen sums, whatever the tokens: per parameter 0.05 of 2 · 4,096 FLOPs at 3/4 of 312 TFLOP/s is 1.8 ps on an A100, a
# separate addition's 10 bytes at 85 % of 2,039 GB/s are 5.8 ps; on a B200 (2,250 TFLOP/s, 8,000 GB/s) 0.39 and 1.47.
FP32_SUMS = 0.3


def _widens(run: TrainingRun) -> bool:
    """Return whether products of weight gradients add to sums that are wider than the products' operands."""
    wider = run.gradient_bytes > run.element_bytes and run.zero_stage < 2
    return run.fused_gradient_accumulation and wider


def sums_in_products(run: TrainingRun) -> bool:
    """Return whether products of weight gradients add to fp32 sums, and the system measured such products.

    They have 16-bit operands, so those of a recipe of fewer bits are not among them. Every micro-batch's add: the first
    one's to zeros. Source: Megatron-LM core/tensor_parallel/layers.py, wgrad_gemm_accum_fp32;
    core/distributed/param_and_grad_buffer.py, reset.
    """
    products = {DATA_GRADIENT, FP32_WEIGHT_GRADIENT}
    return _widens(run) and run.gemm_recipe is None and products <= run.model.measured_kernels


def accumulating(tasks: list[Task]) -> list[Task]:
    """Return tasks whose products add their weight gradients to sums in fp32."""
    products = DATA_GRADIENT, FP32_WEIGHT_GRADIENT
    return [
        task._replace(operator=with_backward(task.operator, products)) if task.operator.gradient_operators else task
        for task in tasks
    ]


def accumulation_tasks(run: TrainingRun, kind: LayerKind) -> list[Task]:
    """Return what adding to earlier micro-batches' gradients costs a micro-batch after the first.

    Fused into the products, sums in fp32 still take their share of a separate addition; a rank that keeps only its
    share of the gradients has nothing that products could add to. Where such products were measured, they say it.
    """
    separate = [gradient_accumulation(run, kind)]
    if not run.fused_gradient_accumulation:
        return separate
    return share_of(separate, FP32_SUMS) if _widens(run) and not sums_in_products(run) else []
