"""A GPU in virtual time: tensors stay small on the CPU, every kernel costs what the test says, launches queue up.

It shows what ordering, queueing and bookkeeping do on a GPU, never how fast one is. Kernels run in order behind a queue
of ``QUEUE`` launches: a host that is further ahead waits. Events, sleeps and synchronisation behave as on a device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from microbench.call import Call, Maker
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Direction, Operator, Shape

QUEUE = 1022
SLEEP_HZ = 1.98e9
LATENCY_S, EVENT_S, VIEW_S, OPERATION_S = 2e-6, 1e-6, 1e-6, 6e-6
SHORTEST_KERNEL_S = 2e-6
COMPILE_S = 8.0  # both passes of a function, and the start of the compiler's processes
MULTIPROCESSORS = 132
# What is flushed is a small buffer here, told by its size, that costs what 256 MB do.
FLUSHED_ELEMENTS, FLUSH_S = 1009, 200e-6
# Views and allocations, which launch nothing.
LAUNCHLESS = frozenset({
    "view", "t", "transpose", "detach", "slice", "alias", "expand", "unsqueeze", "squeeze", "permute", "select",
    "split", "_unsafe_view", "as_strided", "lift_fresh", "is_same_size", "chunk", "unbind", "_reshape_alias",
    "_local_scalar_dense",
})  # fmt: skip
# Operations whose result the host waits for: its size, or its number, is not known before.
WAITED_FOR = frozenset({"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"})
TENSORS_PER_KERNEL = {"_fused": 30, "_foreach": 64}
# Of an ideal H100: what its data sheet says, and the share of it that kernels reach.
FLOP_PER_S, BYTES_PER_S = 989.5e12 * 0.72, 3.35e12 * 0.9
OTHER_KERNEL_SPEEDUP = 2.0  # of attention in another implementation than the default


@dataclass
class VirtualGpu:
    """The state of the device and of the host that feeds it, in seconds."""

    host_s: float = 0.0
    free_s: float = 0.0
    kernel_s: float = 5e-6
    longest_sleep_s: float = 0.0
    launches: int = 0
    lost: bool = False
    kernels_s: float = 0.0
    compiled_s: float = 0.0
    pending: deque[float] = field(default_factory=deque)
    others: dict[int, float] = field(default_factory=dict)
    current: int = 0

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Make a stream the current one; streams do not slow each other down."""
        before = self.current
        self.switch(stream.number)
        yield
        self.switch(before)

    def switch(self, number: int) -> None:
        self.others[self.current] = self.free_s
        self.free_s, self.current = self.others.get(number, 0.0), number

    def stream(self) -> Stream:
        return Stream(self, len(self.others) + 1)

    @contextmanager
    def captured(self, graph: Graph) -> Iterator[None]:
        """Keep what is launched for the graph, which replays it in one launch."""
        kept = self.host_s, self.free_s, deque(self.pending)
        begun = self.free_s = max(self.free_s, self.host_s)
        self.kernels_s = 0.0
        yield
        graph.seconds = self.kernels_s
        assert self.free_s >= begun
        self.host_s, self.free_s, self.pending = kept

    def launch(self, seconds: float) -> None:
        """Queue a kernel; a full queue holds the host up."""
        self.launches += 1
        while self.pending and self.pending[0] <= self.host_s:
            self.pending.popleft()
        if len(self.pending) >= QUEUE:
            self.host_s = max(self.host_s, self.pending.popleft())
        self.kernels_s += seconds
        self.free_s = max(self.free_s, self.host_s + LATENCY_S) + seconds
        self.pending.append(self.free_s)

    def synchronize(self, *_: object) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.host_s = max(self.host_s, self.free_s, *self.others.values())
        self.pending.clear()

    def sleep(self, cycles: int) -> None:
        self.longest_sleep_s = max(self.longest_sleep_s, cycles / SLEEP_HZ)
        self.launch(cycles / SLEEP_HZ)

    def rest(self, seconds: float) -> None:
        self.host_s += seconds

    def event(self, enable_timing: bool = False) -> Event:
        return Event(self)

    def compile(self, function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        """Return a function that holds the host up once, as long as a compiler does."""
        waiting = [COMPILE_S]

        def compiled(*inputs: Any) -> Any:
            seconds = waiting.pop() if waiting else 0.0
            self.host_s += seconds
            self.compiled_s += seconds
            return function(*inputs)

        return compiled

    def clock(self) -> float:
        return self.host_s

    def dispatched(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Account for one operation that torch has run."""
        if name in LAUNCHLESS or name.startswith("empty") or "new_empty" in name:
            self.host_s += VIEW_S
            return
        if name == "add_" and arguments[0].numel() == FLUSHED_ELEMENTS:
            self.host_s += OPERATION_S
            self.launch(FLUSH_S)
            return
        if name in WAITED_FOR:
            self.launch(self.kernel_s)
            self.synchronize()
            return
        prefix = next((known for known in TENSORS_PER_KERNEL if name.startswith(known)), None)
        if prefix is not None and isinstance(arguments[0], list):
            kernels = -(-len(arguments[0]) // TENSORS_PER_KERNEL[prefix])
            self.host_s += OPERATION_S * kernels
            for _ in range(kernels):
                self.launch(self.kernel_s)
            return
        self.host_s += OPERATION_S
        self.launch(self.kernel_s)


@dataclass
class Stream:
    """A queue beside the others."""

    gpu: VirtualGpu
    number: int

    def wait_event(self, event: Event) -> None:
        self.gpu.others[self.number] = max(self.gpu.others.get(self.number, 0.0), event.at_s)
        if self.number == self.gpu.current:
            self.gpu.free_s = max(self.gpu.free_s, event.at_s)

    def wait_stream(self, other: Stream) -> None:
        event = Event(self.gpu)
        with self.gpu.on(other):
            event.record()
        self.wait_event(event)


@dataclass
class Graph:
    """A CUDA graph: launched at once, kernels behind each other."""

    gpu: VirtualGpu
    seconds: float = 0.0

    def replay(self) -> None:
        self.gpu.host_s += OPERATION_S
        self.gpu.launch(self.seconds)


class Event:
    """A time stamp in the queue."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu, self.at_s = gpu, 0.0

    def record(self, stream: object = None) -> None:
        self._gpu.host_s += EVENT_S
        self.at_s = max(self._gpu.free_s, self._gpu.host_s + EVENT_S)

    def query(self) -> bool:
        return self.at_s <= self._gpu.host_s

    def elapsed_time(self, other: Event) -> float:
        return (other.at_s - self.at_s) * 1e3

    def synchronize(self) -> None:
        self._gpu.host_s = max(self._gpu.host_s, self.at_s)


def tiny(operator: Operator, shape: Shape) -> Shape:
    """Return a shape of the same kind that costs a processor nothing; lists keep their number of tensors."""
    if operator.dimensions == ("parameters", "tensors"):
        return 1024 * shape[1], shape[1]
    if operator.name == "grouped_query_attention":
        _, _, heads, kv_heads, _, causal, window = shape
        return 1, 16, heads // kv_heads, 1, 8, causal, min(window, 8)
    if operator.name == "flash_attention":
        return 1, 16, 2, 8, shape[4]
    return tuple(min(size, 16) for size in shape)


def pass_seconds(operator: Operator, shape: Shape, direction: Direction) -> float:
    """Return what a pass takes on the virtual GPU: its FLOPs or its bytes, whichever is longer."""
    work = operator.work(shape, direction, MULTIPROCESSORS)
    return max(work.flops / FLOP_PER_S, work.size_bytes / BYTES_PER_S, SHORTEST_KERNEL_S)


def _kernels(gpu: VirtualGpu, run: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many kernels a pass launches, and its output; the pass takes no virtual time but for compiling."""
    kept = gpu.host_s - gpu.compiled_s, gpu.free_s, deque(gpu.pending), gpu.launches
    output = run()
    launched = max(1, gpu.launches - kept[3])
    host_s, gpu.free_s, gpu.pending, gpu.launches = kept
    gpu.host_s = host_s + gpu.compiled_s
    return launched, output


def scaled_build(gpu: VirtualGpu, build: Callable[[str], Callable[[Shape, Maker], Call]]) -> Callable[[str], Any]:
    """Return kernels that run tiny tensors and take as long as those of the shape that was asked for."""
    import torch

    def build_function(name: str) -> Callable[[Shape, Maker], Call]:
        operator = catalogue()[name]

        def built(shape: Shape, make: Maker) -> Call:
            call = build(name)(tiny(operator, shape), make)
            slowdown = OTHER_KERNEL_SPEEDUP if operator.fused_attention and not make.attention_kernel else 1.0
            forward, output = _kernels(gpu, call.forward)
            outputs = output if isinstance(output, tuple) else (output,)
            backward = 1
            if call.backward is not None:
                backward, _ = _kernels(gpu, call.backward)
            elif len(operator.directions) > 1:
                gradients = [torch.ones_like(tensor) for tensor in outputs]
                backward, _ = _kernels(gpu, lambda: torch.autograd.grad(outputs, call.inputs, gradients))

            def pace(direction: Direction, kernels: int) -> None:
                gpu.kernel_s = slowdown * pass_seconds(operator, shape, direction) / kernels

            def run_forward() -> Any:
                pace(Direction.FORWARD, forward)
                result = call.forward()
                for tensor in result if isinstance(result, tuple) else (result,):
                    if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                        tensor.register_hook(lambda _: pace(Direction.BACKWARD, backward))
                return result

            def run_backward() -> Any:
                pace(Direction.BACKWARD, backward)
                assert call.backward is not None
                return call.backward()

            return Call(run_forward, call.inputs, call.kernel, run_backward if call.backward else None)

        return built

    return build_function


def on_processor() -> Any:
    """Return a context in which tensors of a GPU are made on the processor."""
    from torch.overrides import TorchFunctionMode

    class OnProcessor(TorchFunctionMode):  # type: ignore[misc]
        """Makes the tensors of a GPU on the processor."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    return OnProcessor()


@contextmanager
def installed(monkeypatch: pytest.MonkeyPatch, gpu: VirtualGpu, name: str = "NVIDIA H100 80GB HBM3") -> Iterator[None]:
    """Make torch and microbench see the virtual GPU, and its host's clock."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):  # type: ignore[misc]
        """Queues a kernel for every operation that torch runs."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = func(*args, **(kwargs or {}))
            gpu.dispatched(func._schema.name.split("::")[1], args)
            return output

    properties = SimpleNamespace(
        L2_cache_size=50 * 2**20,
        multi_processor_count=MULTIPROCESSORS,
        uuid="virtual",
        major=9,
        minor=0,
        clock_rate=SLEEP_HZ / 1e3,
    )
    memory = 79 * 2**30
    for attribute, value in {
        "is_available": lambda: True,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
        "mem_get_info": lambda *_: (memory, memory),
        "is_bf16_supported": lambda *_: True,
        "get_device_name": lambda *_: name,
        "device_count": lambda: 1,
        "Event": gpu.event,
        "synchronize": gpu.synchronize,
        "_sleep": gpu.sleep,
        "empty_cache": lambda: None,
        "Stream": gpu.stream,
        "current_stream": lambda: Stream(gpu, gpu.current),
        "stream": gpu.on,
        "CUDAGraph": lambda: Graph(gpu),
        "graph": gpu.captured,
    }.items():
        monkeypatch.setattr(torch.cuda, attribute, value)
    forced = torch.nn.attention.sdpa_kernel
    flash, cudnn = torch.nn.attention.SDPBackend.FLASH_ATTENTION, torch.nn.attention.SDPBackend.CUDNN_ATTENTION

    @wraps(forced)
    def without_cudnn(backend: Any) -> Any:  # a processor has none
        return forced(flash if backend == cudnn else backend)

    monkeypatch.setattr(torch.nn.attention, "sdpa_kernel", without_cudnn)
    # The compiler takes nothing below a mode that sees every operation: what it would fuse runs one by one.
    monkeypatch.setattr(torch, "compile", gpu.compile)
    clock = SimpleNamespace(perf_counter=gpu.clock, monotonic=gpu.clock, sleep=gpu.rest)
    for module in ("clocks", "profile", "cli", "system"):
        monkeypatch.setattr(f"microbench.{module}.time", clock)
    monkeypatch.setattr("microbench.timing.LEAST_GPU_FLUSH_BYTES", 4 * FLUSHED_ELEMENTS)
    monkeypatch.setattr("microbench.timing.FLUSH_TIMES_CACHE", 0.0)
    monkeypatch.setattr("microbench.nvml.nvml", lambda: None)
    monkeypatch.setattr("microbench.device.gpu_session", lambda: {"driver": "580.159.04"})
    with on_processor(), Counted():
        yield
