"""Adam on the CPU, over states in host memory: timed by the bytes that it streams.

DeepSpeed's CPU Adam updates 10 billion parameters of a DGX-2 in 2.57 s, PyTorch's in 14.76 s (Ren et al. 2021,
ZeRO-Offload, arXiv:2101.06840, table 4): 117 of 255.9 GB/s (two Xeon Platinum 8168, six channels of DDR4-2666 each),
and 5.7 times as long. Of 1 billion parameters they are 0.22 and 1.39 s.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.regressors import Outside
from predictor.core.costs.streams import ADAM_BYTES
from predictor.core.costs.work import Work

WEIGHT_BYTES = 2  # the new weight in 16 bits, for the GPU
EFFICIENCY = 117 / 255.9
TORCH_OVER_DEEPSPEED = 14.76 / 2.57
# Threads bound to the wrong socket, or fewer threads than cores, take several times as long; none beats the memory.
SLOWEST = 4.0


def _adam(name: str, times: float, source: str) -> Operator:
    def work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
        return Work(0.0, float(shape[0]) * (ADAM_BYTES + WEIGHT_BYTES) * times)

    return Operator(
        name=name,
        dimensions=("parameters",),
        work=work,
        directions=(Direction.FORWARD,),
        byte_sizes="fixed",
        launches=(0, 0),
        source=source,
    )


DEEPSPEED_ADAM = _adam("host_adam", 1.0, "parameter, gradient and moments read, parameter and moments written, fp32")
TORCH_ADAM = _adam(
    "host_adam_torch", TORCH_OVER_DEEPSPEED, "the same, one operation at a time: arXiv:2101.06840, table 4"
)
HOST_ADAMS = {operator.name: operator for operator in (DEEPSPEED_ADAM, TORCH_ADAM)}


@dataclass(frozen=True, slots=True)
class HostAdamRegressor:
    """Times updates on the CPU by the data sheet of its memory.

    Attributes:
        gb_per_s: a GPU's share of its node's host memory bandwidth.
    """

    gb_per_s: float

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one update: from the memory's full rate to a few threads' rate."""
        least_us = operator.work(shape, direction, 1).size_bytes / (self.gb_per_s * 1e3)
        us = least_us / EFFICIENCY
        return Cost(us, least_us, SLOWEST * us, Source.ANALYTIC)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return that no update was measured."""
        return Outside("operator", None)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval, as a log; of no operator that is timed as updates."""
        raise AssertionError(f"{operator.name} stands in for no operator")
