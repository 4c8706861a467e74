"""The profiler's words through its versions: categories of events, and the keys of their arguments.

Source: PyTorch's profiler since 1.8 and Kineto, libkineto/src/ActivityType.cpp, output_json.cpp and output_membuf.h;
keys with tensors in them, torch/csrc/autograd/profiler_kineto.cpp and torch/csrc/profiler/collection.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from predictor.replay.files.events import UNKNOWN, Category

PROFILER_SPAN = "trace"  # the profiler itself: it encloses all and is no work
CATEGORIES = {
    "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "user annotation": Category.ANNOTATION,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "driver": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "glow_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "hpu_op": Category.RUNTIME,
    "mtia_ccp_events": Category.KERNEL,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.COPY,
    "memcpy": Category.COPY,
    "gpu_memset": Category.SET,
    "memset": Category.SET,
    "cuda_sync": Category.SYNC,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "python_function": Category.PYTHON,
    "python": Category.PYTHON,
}
ON_STREAMS = frozenset(
    {Category.KERNEL, Category.COPY, Category.SET, Category.SYNC, Category.GPU_ANNOTATION}
)  # rows are streams
# On streams, and no work: kernels for as long as their counters were read, and the recording of an event.
OTHER_ON_STREAMS = frozenset({"cuda_profiler_range", "cuda_event"})
ACCELERATORS = ("mtia", "xpu", "hpu", "privateuse1")  # prefixes of their categories

CORRELATION, EXTERNAL, SEQUENCE = "correlation", "External id", "Sequence number"
NO_NUMBER, LARGEST = 2**32 - 1, 2**63  # -1 as an unsigned number of 32 bits; no number is as large as this
UNSIGNED_NONE = (NO_NUMBER, 2**64 - 1)
KEYS = {
    "correlation": CORRELATION,
    "correlation id": CORRELATION,
    "external id": EXTERNAL,
    "sequence number": SEQUENCE,
    "seq": SEQUENCE,
    "record function id": "Record function id",
    "ev idx": "Ev Idx",
    "profiler event index": "Ev Idx",
    "fwd thread id": "Fwd thread id",
    "input dims": "Input Dims",
    "input shapes": "Input Dims",
    "input type": "Input type",
    "input types": "Input type",
    "input strides": "Input Strides",
    "concrete inputs": "Concrete Inputs",
    "call stack": "Call stack",
    "module hierarchy": "Module Hierarchy",
    "bytes": "bytes",
    "device": "device",
    "device id": "device",
    "stream": "stream",
    "stream id": "stream",
    "collective name": "Collective name",
    "dtype": "dtype",
    "in msg nelems": "In msg nelems",
    "out msg nelems": "Out msg nelems",
    "in msg size": "In msg nelems",
    "out msg size": "Out msg nelems",
    "group size": "Group size",
    "process group name": "Process Group Name",
    "process group description": "Process Group Description",
    "process group ranks": "Process Group Ranks",
}


class KeyPlan(NamedTuple):
    """What to do with arguments that have certain keys.

    Attributes:
        renames: keys, and what newer versions call them.
        has_correlation: they have the number that ties a call to what it started.
        has_external: they have the number of an operator.
        has_sequence: they have autograd's number of an operator.
    """

    renames: tuple[tuple[str, str], ...]
    has_correlation: bool
    has_external: bool
    has_sequence: bool

    def identities(self, args: Mapping[str, object]) -> tuple[int, int, int]:
        """Return correlation, external id and sequence number of renamed arguments, UNKNOWN where they have none."""
        correlation = identity(args[CORRELATION]) or UNKNOWN if self.has_correlation else UNKNOWN
        external = identity(args[EXTERNAL]) or UNKNOWN if self.has_external else UNKNOWN
        if external == correlation:  # older versions repeat it where they know no operator
            external = UNKNOWN
        return correlation, external, identity(args[SEQUENCE]) if self.has_sequence else UNKNOWN


def key_plan(keys: Sequence[str]) -> KeyPlan:
    """Return what to do with arguments of these keys; a key of today's spelling wins over an older one."""
    present = set(keys)
    renames = []
    for key in keys:
        newer = KEYS.get(key.lower(), key)
        if newer != key and newer not in present:
            renames.append((key, newer))
            present.add(newer)
    return KeyPlan(tuple(renames), CORRELATION in present, EXTERNAL in present, SEQUENCE in present)


def identity(value: object) -> int:
    """Return a number that ties events together; UNKNOWN where it is none."""
    if type(value) is int:
        return value if 0 <= value < LARGEST and value != NO_NUMBER else UNKNOWN
    if isinstance(value, str):
        try:
            return identity(int(value, 0))
        except ValueError:
            return UNKNOWN
    return identity(int(value)) if isinstance(value, float) and isfinite(value) else UNKNOWN
