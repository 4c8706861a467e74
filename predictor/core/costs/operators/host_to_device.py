"""Copy of a batch from pinned host memory to the device; its peak is the host link's, not the memory's."""

from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import Work


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    return Work(0.0, float(shape[0]))


OPERATOR = Operator(
    name="host_to_device",
    dimensions=("size_bytes",),
    work=_work,
    directions=(Direction.FORWARD,),
    byte_sizes="fixed",
    source="every byte written to device memory once",
)
