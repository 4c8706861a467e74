"""Adam on the CPU, over states in host memory: timed by the bytes that it streams.

DeepSpeed's CPU Adam updates 10 billion parameters of a DGX-2 in 2.57 s, PyTorch's in 14.76 s (Ren et al. 2021,
ZeRO-Offload, arXiv:2101.06840, table 4): 117 of 255.9 GB/s (two Xeon Platinum 8168, six channels of DDR4-2666 each),
and 5.7 times as long. Of 1 billion parameters they are 0.22 and 1.39 s.

A few threads stream less than a rank's share of the memory: one does where a launcher sets OMP_NUM_THREADS to 1 (torch
distributed/run.py and accelerate/commands/launch.py, where a node has several ranks). Users' accounts of ZeRO-Offload
take 4 ns a parameter of a rank, copies included: 72 billion on 32 GPUs in 10 s (deepspeedai/DeepSpeed, issue 6834; one
thread and pageable copies: 10.1 s), Llama 2 7B on 4 in 6.5 s and more (PyTorch's blog on ZenFlow; 7.6 s).
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.regressors import Outside
from predictor.core.costs.streams import ADAM_BYTES
from predictor.core.costs.work import Work

WEIGHT_BYTES = 2  # the new weight in 16 bits, for the GPU
# DeepSpeed multiplies its fp32 gradients by the loss scale's and the clipping's factor before the update: read and
# written by PyTorch's kernel. Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py, unscale_and_clip_grads.
SCALING_BYTES = 8
EFFICIENCY = 117 / 255.9
TORCH_OVER_DEEPSPEED = 14.76 / 2.57
# STREAM on one thread: 12 GB/s on Skylake-SP, 1.5 times as much on Broadwell-EP (AnandTech 11544); most by
# concurrency over latency, which cores have of their own.
THREAD_GB_PER_S = 12.0
# DeepSpeed's loop over single numbers, which releases 0.14.1 and 0.14.2 build where AVX is not found
# (deepspeedai/DeepSpeed, issue 6363), over its AVX-512 one: 3.8 to 4.9 ns against 0.8 to 1.2 ns a parameter, measured
# on one thread of an AMD EPYC 9004. Issue 1635 has 16 ns on a Xeon Silver 4210R.
SCALAR_OVER_SIMD = 4.4
# Threads bound to the wrong socket, or fewer threads than cores, take several times as long; none beats the memory.
SLOWEST = 4.0


def _adam(name: str, times: float, source: str, size_bytes: int = ADAM_BYTES + WEIGHT_BYTES) -> Operator:
    def work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
        return Work(0.0, float(shape[0]) * size_bytes * times)

    return Operator(
        name=name,
        # Of the ranks of a node; 0 threads: as many as stream a rank's share of the memory.
        dimensions=("parameters", "threads", "ranks"),
        work=work,
        directions=(Direction.FORWARD,),
        byte_sizes="fixed",
        launches=(0, 0),
        source=source,
    )


DEEPSPEED_ADAM = _adam("host_adam", 1.0, "parameter, gradient and moments read, parameter and moments written, fp32")
SCALAR_ADAM = _adam("host_adam_scalar", 1.0, "the same, one number at a time: deepspeedai/DeepSpeed, issue 6363")
TORCH_ADAM = _adam(
    "host_adam_torch", TORCH_OVER_DEEPSPEED, "the same, one operation at a time: arXiv:2101.06840, table 4"
)
GRADIENT_SCALING = _adam("host_gradient_scaling", 1.0, "fp32 gradients read and written", SCALING_BYTES)
HOST_ADAMS = {operator.name: operator for operator in (DEEPSPEED_ADAM, SCALAR_ADAM, TORCH_ADAM, GRADIENT_SCALING)}


@dataclass(frozen=True, slots=True)
class HostAdamRegressor:
    """Times updates on the CPU by the data sheet of its memory, and by the threads of a rank.

    Attributes:
        gb_per_s: host memory bandwidth of a node, which its ranks share.
    """

    gb_per_s: float

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one update: from the memory's full rate to a few threads', or to single numbers'."""
        size_bytes, (_, threads, ranks) = operator.work(shape, direction, 1).size_bytes, shape
        least_us = size_bytes * ranks / (self.gb_per_s * 1e3)
        slower = SCALAR_OVER_SIMD if operator is SCALAR_ADAM else 1.0
        thread_us = slower * size_bytes / (threads * THREAD_GB_PER_S * 1e3) if threads else 0.0
        us = max(least_us / EFFICIENCY, thread_us)
        return Cost(us, least_us, SLOWEST * us, Source.ANALYTIC)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return that no update was measured."""
        return Outside("operator", None)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval, as a log; of no operator that is timed as updates."""
        raise AssertionError(f"{operator.name} stands in for no operator")
