"""Element-wise kernels of PyTorch that load one number at a time.

Operands of unlike types, broadcast operands and views whose rows are not dense keep PyTorch's element-wise kernels from
loading vectors (aten/src/ATen/native/cuda/CUDALoops.cuh). Such a kernel takes so long per number, whatever the memory
could stream. Measured on large tensors, as picoseconds per number times the GPU's multiprocessors:

| GPU | kernel | measured | ps · multiprocessors |
|---|---|---|--:|
| A100 | bf16 to fp32 | 362 µs of 67,108,864 (pytorch/pytorch, pull request 195542) | 583 |
| H100 PCIe | fp32 to fp16, before it loaded vectors | 9.11 ms of 2^31 (pull request 137053) | 483 |
| Blackwell | bf16 to fp32 | 2.77 ms of 1,024^3, vectors 0.94 ms (PaddlePaddle/Paddle, pull request 76988) | 382 |

At boost clocks of 1.41, 1.76 and 1.97 GHz these are 0.82, 0.85 and 0.75 clocks of all multiprocessors: the time follows
the clock, not the memory. On an A100 that is 1.1 times a stream of the same bytes, on Blackwell 3 times. The last
source does not name its GPU; only Blackwell streams the 6.8 TB/s that its vectorized kernel does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.regressors import Outside
from predictor.core.costs.stream_stand_ins import streamed
from predictor.core.costs.work import Work
from predictor.core.hardware.hardware import Gpu

# By the matrix instruction, which tells the generation.
PS_TIMES_MULTIPROCESSORS = {"mma": 583.0, "wgmma": 483.0, "tcgen05": 382.0}
# Half width of the 90 % interval, as a log: such kernels differ in how many loads they have under way. Assumed.
LOG_ERROR = 0.35


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    return Work(0.0, float(shape[1]))


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """A stream of the same bytes, on GPUs of which no such kernel was measured."""
    return streamed(float(shape[1]), LOG_ERROR)


OPERATOR = Operator(
    name="scalar_elementwise",
    dimensions=("elements", "size_bytes"),
    work=_work,
    directions=(Direction.FORWARD,),
    bookkeeping=("elements",),
    byte_sizes="fixed",
    stand_in=_stand_in,
    source="one number at a time: every element is computed, its bytes are read and written",
)


@dataclass(frozen=True, slots=True)
class ScalarKernelRegressor:
    """Times kernels by their elements, no shorter than their bytes take.

    Attributes:
        ps_per_element: time of one element, picoseconds.
        gb_per_s: memory bandwidth of the data sheet.
    """

    ps_per_element: float
    gb_per_s: float

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one kernel."""
        elements, size_bytes = shape
        least_us = size_bytes / (self.gb_per_s * 1e3)
        us = max(elements * self.ps_per_element * 1e-6, least_us)
        return Cost(us, max(least_us, us * exp(-LOG_ERROR)), us * exp(LOG_ERROR), Source.ANALYTIC)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return that no such kernel was measured here."""
        return Outside("operator", None)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval, as a log."""
        return LOG_ERROR


def scalar_kernels_of(gpu: Gpu) -> ScalarKernelRegressor | None:
    """Return how long such kernels take on a GPU; None on one of another kind than those that were measured."""
    if gpu.matrix_instruction is None:
        return None
    ps = PS_TIMES_MULTIPROCESSORS[gpu.matrix_instruction] / gpu.num_multiprocessors.value
    return ScalarKernelRegressor(ps, gpu.memory_bandwidth_gb_per_s.value)
