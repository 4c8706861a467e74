"""The gate against an ideal GPU: what the kernel files really move decides what the catalogue may count.

Every kernel file runs on tensors without storage while each PyTorch operation is watched: which bytes it reads and
writes. From that comes the time of a GPU that reaches 95 % of its data sheet. Its rows must pass the gate, and rows
that are twice as fast as possible must not. The catalogue's work has no part in the times, so it is what is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fitting.gate import IMPOSSIBLE, gate
from fitting.systems import read_system
from fitting.tables import Row
from microbench.call import Call, Maker
from microbench.kernels import build_function, kernel_names
from microbench.lookups import SPREAD
from microbench.sweep import read_sweep, shapes_of
from predictor.core.costs.catalogue import catalogue, families
from predictor.core.costs.operator import MATMUL_EXTRAS, Direction, Operator, Shape
from predictor.core.costs.operators.mla_attention import MEAN_WIDTH
from predictor.core.hardware.hardware import Quantity, System
from tests.unit.kernel_traffic import Traffic

ROOT = Path(__file__).resolve().parents[3]
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
PRECISIONS = ("bf16", "fp32")
# Bounded by the host's link, which a gate of device memory does not know.
OVER_A_LINK = ("host_to_device",)
OPERATORS = [
    name for name in kernel_names() if set(PRECISIONS) <= set(catalogue()[name].precisions) and name not in OVER_A_LINK
]
REACHED = 0.95  # of the data sheet's bandwidth and peak
KERNEL_US = 2.0  # the shortest kernel
LEAST_KEPT = 0.99
# Calls so much larger than the cache that what it holds hides nothing.
LARGE_TIMES_CACHE = 8
SMALL_SEQUENCE, SMALL_LIST = 64, (8192, 2)
# Backward of attention is five products where forward is two: Dao 2023, arXiv:2307.08691.
PRODUCTS = {FORWARD: 2, BACKWARD: 5}
# Returned, but not needed: the softmax that Megatron-LM keeps for the backward pass can be computed again.
NEEDED_OUTPUTS = {"cross_entropy": 1}
# A norm over all gradients is known after the last of them was read, and each is read again to be scaled; so are the
# statistics of a batch.
READS_TWICE = ("gradient_clipping", "batch_norm")
# Of single operations, whose backward pass reads intermediate results that other kernels compute again; a fused norm,
# watched before it is fused, keeps its rows in fp32 too.
KEEPS_INTERMEDIATES = ("gated_delta_rule", "ssd_scan", "fused_rms_norm")
# Keys that are sorted or split have sizes that only they tell.
BY_KEYS, SMALL_LOOKUPS = ("embedding_update", "kjt_permute"), 4096


def h100() -> System:
    """An H100 by its data sheet, with the fp32 peak that its system's file leaves out."""
    hardware = read_system(ROOT / "training" / "systems" / "H100.yaml").hardware
    peaks = {**hardware.gpu.peak_tflop_per_s, "fp32": Quantity(value=67.0, source="H100 data sheet, SXM, FP32")}
    return hardware.model_copy(update={"gpu": hardware.gpu.model_copy(update={"peak_tflop_per_s": peaks})})


SYSTEM = h100()
CACHE_BYTES = SYSTEM.gpu.l2_cache_mb.value * 1e6


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, list | tuple) else []


def storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes that a tensor touches: a broadcast dimension's once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return int(prod(sizes) * tensor.element_size())


def view_of(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
    return storage_of(tensor), int(tensor.storage_offset()), tuple(tensor.shape)


def once(touched: Sequence[tuple[torch.Tensor, float]]) -> float:
    """Bytes of all storages, each view of one counted once and none beyond its storage's size."""
    views = {view_of(tensor): (tensor, size) for tensor, size in touched}
    sums: dict[int, float] = {}
    for tensor, size in views.values():
        key = storage_of(tensor)
        sums[key] = min(sums.get(key, 0.0) + size, float(tensor.untyped_storage().nbytes()))
    return sum(sums.values())


@dataclass
class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is not there for mypy
    """Counts what the operations below it read and write."""

    reads: list[tuple[torch.Tensor, float]] = field(default_factory=list)
    writes: list[tuple[torch.Tensor, float]] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    flops: float = 0.0
    kernels: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        output = function(*arguments, **(keywords or {}))
        if function.namespace in ("aten", "fbgemm"):
            self._count(function, arguments, keywords or {}, tensors_in(output))
        return output

    def _count(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], outputs: Any) -> None:
        name = function.overloadpacket.__name__
        inputs = {view_of(t): t for t in tensors_in([*arguments, *keywords.values()])}
        known = {storage for storage, _, _ in inputs}
        made = [tensor for tensor in outputs if storage_of(tensor) not in known]
        self.made |= {storage_of(tensor) for tensor in made}
        if name.startswith("empty") or not (made or function._schema.is_mutable):
            return  # allocates, or is a view
        self.kernels += 1
        if name in ("mm", "bmm", "baddbmm", "addmm"):
            self.flops += 2.0 * outputs[0].numel() * arguments[-1].shape[-2]
        if name == "baddbmm" and keywords.get("beta") == 0.0:
            del inputs[view_of(arguments[0])]
        changed = [
            tensor
            for argument, value in zip(function._schema.arguments, arguments, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tensors_in(value)
        ]
        self._add(name, arguments, list(inputs.values()), made, changed)

    def _add(
        self,
        name: str,
        arguments: tuple[Any, ...],
        inputs: list[torch.Tensor],
        made: list[torch.Tensor],
        changed: list[torch.Tensor],
    ) -> None:
        """Add one kernel; a gather or scatter touches chosen rows only."""
        touched = {id(tensor): float(bytes_of(tensor)) for tensor in [*inputs, *made, *changed]}
        if name == "embedding":
            table, ids = arguments[:2]
            touched[id(table)] = different(ids.numel(), table.shape[0]) * table.shape[1] * table.element_size()
        elif name == "_embedding_bag_forward_only" and arguments[0].device.type == "meta":  # a table, not gradients
            table = arguments[0]
            touched[id(table)] = table.shape[0] // SPREAD * table.shape[1] * table.element_size()
        elif name == "index_select":
            touched[id(arguments[0])] = min(bytes_of(arguments[0]), bytes_of(made[0]))
        elif name == "index_copy_":
            touched[id(arguments[0])] = bytes_of(arguments[3])
        elif name == "index":
            touched[id(arguments[0])] = bytes_of(made[0])
        elif name == "index_put_":
            touched[id(arguments[0])] = bytes_of(arguments[2])
        self.reads += [(tensor, touched[id(tensor)]) for tensor in inputs]
        self.writes += [(tensor, touched[id(tensor)]) for tensor in [*made, *changed]]

    def traffic(self, needed: Sequence[torch.Tensor]) -> Traffic:
        """What ran, where ``needed`` is what it is for."""
        read = [(t, size) for t, size in self.reads if storage_of(t) not in self.made]
        changed = [(t, size) for t, size in self.writes if storage_of(t) not in self.made]
        results = [(t, float(bytes_of(t))) for t in needed if storage_of(t) in self.made]
        return Traffic(
            size_bytes=sum(size for _, size in self.reads + self.writes),
            least_bytes=sum(once(part) for part in (read, changed, results)),
            flops=self.flops,
            kernels=self.kernels,
        )


@cache
def different(count: int, largest: int) -> int:
    """How many different numbers ``Maker.ids`` draws, from a drawing."""
    generator = torch.Generator().manual_seed(count)
    return int(torch.randint(largest, (count,), generator=generator).unique().numel())


def backward_of(call: Call, outputs: Any) -> Callable[[], Any]:
    """The backward pass as it is timed."""
    if call.backward is not None:
        return call.backward
    gradients = [torch.randn_like(tensor) for tensor in tensors_in(outputs)]
    return lambda: torch.autograd.grad(tensors_in(outputs), call.inputs, gradients)


def uncompiled(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """A function as it is written: the compiler takes nothing while every operation is watched."""
    return function


@cache
def watched(name: str, shape: Shape, device: str, precision: str) -> dict[Direction, Traffic]:
    """Run a kernel file in every direction that its operator has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", uncompiled)
        return _watched(name, shape, device, precision)


def _watched(name: str, shape: Shape, device: str, precision: str) -> dict[Direction, Traffic]:
    call = build_function(name)(shape, Maker(device, precision))
    if name.startswith("optimizer_step"):
        call.forward()  # the first step makes the moments
    found = {}
    with Watch() as watch:
        outputs = call.forward()
    found[FORWARD] = watch.traffic(tensors_in(outputs)[: NEEDED_OUTPUTS.get(name)])
    if BACKWARD in catalogue()[name].directions:
        run = backward_of(call, outputs)
        with Watch() as watch:
            gradients = run()
        found[BACKWARD] = watch.traffic(tensors_in(gradients))
    return found


SMALL_CHUNKS = (2, 4)
# What an operator's dimensions leave out because it is always the same.
FIXED_SIZES = {"mla_attention": {"causal": 1, "head_dim": MEAN_WIDTH}}


def needed_pairs(length: int, causal: int, window: int) -> int:
    """Pairs of a query and a key that it sees."""
    if not causal:
        return length * length
    return sum(min(query + 1, window or length) for query in range(length))


@cache
def small_attention(name: str, sizes: tuple[tuple[str, int], ...], precision: str) -> dict[Direction, Traffic]:
    """Attention as one kernel, on a CPU's few tokens: without storage PyTorch would run it unfused."""
    small = {**dict(sizes), "batch": 1, "sequence": SMALL_SEQUENCE, "window": 0}
    return watched(name, tuple(small[dimension] for dimension in catalogue()[name].dimensions), "cpu", precision)


@cache
def small_list(name: str, precision: str) -> dict[Direction, Traffic]:
    """A list of parameters on a CPU: the fused optimizer takes no tensors without storage."""
    return watched(name, SMALL_LIST, "cpu", precision)


@cache
def few_keys(name: str, shape: Shape, precision: str) -> dict[Direction, Traffic]:
    """A share of the keys on a CPU, so many times as much."""
    sizes = dict(zip(catalogue()[name].dimensions, shape, strict=True))
    factor = max(1, sizes["lookups"] // SMALL_LOOKUPS)
    small = sizes | {"lookups": sizes["lookups"] // factor}
    if "rows" in sizes:
        small["rows"] = max(1, sizes["rows"] // factor)
    found = watched(name, tuple(small.values()), "cpu", precision)
    share = small["lookups"] / sizes["lookups"]
    # How many kernels sort them is the device's to choose; one at least.
    return {direction: replace(traffic.times(1 / share), kernels=1) for direction, traffic in found.items()}


def scanned(name: str, sizes: dict[str, int], precision: str) -> dict[Direction, Traffic]:
    """What every further chunk adds to few ones; how many kernels run them is the implementation's to choose."""
    few, more = (
        watched(name, tuple((sizes | {"batch": 1, "sequence": n * sizes["chunk"]}).values()), "meta", precision)
        for n in SMALL_CHUNKS
    )
    further = (sizes["sequence"] / sizes["chunk"] - SMALL_CHUNKS[0]) / (SMALL_CHUNKS[1] - SMALL_CHUNKS[0])
    whole = {d: (few[d].times(1.0 - further) + more[d].times(further)).times(sizes["batch"]) for d in few}
    return {direction: replace(traffic, kernels=1) for direction, traffic in whole.items()}


def traffic_of(operator: Operator, shape: Shape, precision: str) -> dict[Direction, Traffic]:
    sizes = FIXED_SIZES.get(operator.name, {}) | dict(zip(operator.dimensions, shape, strict=True))
    if "parameters" in sizes:
        factor = sizes["parameters"] / SMALL_LIST[0]
        # How many kernels a list takes is the device's to choose; one at least.
        return {d: replace(t.times(factor), kernels=1) for d, t in small_list(operator.name, precision).items()}
    if operator.name in BY_KEYS:
        return few_keys(operator.name, shape, precision)
    if "chunk" in sizes:
        return scanned(operator.name, sizes, precision)
    if "head_dim" not in sizes:
        return watched(operator.name, shape, "meta", precision)
    one = tuple((key, size) for key, size in sizes.items() if key not in ("batch", "sequence", "window"))
    tokens = sizes["batch"] * sizes["sequence"]
    pairs = needed_pairs(sizes["sequence"], sizes["causal"], sizes.get("window", 0))
    flops = 2.0 * sizes["batch"] * sizes["heads"] * pairs * sizes["head_dim"]
    found = {}
    for direction, small in small_attention(operator.name, one, precision).items():
        moved = small.times(tokens / SMALL_SEQUENCE)
        found[direction] = Traffic(moved.size_bytes, moved.least_bytes, flops * PRODUCTS[direction], 1)
    return found


@cache
def measured(name: str, precision: str) -> dict[Shape, dict[Direction, Traffic]]:
    """What every shape of the standard sweep moves."""
    operator = catalogue()[name]
    return {
        shape: traffic_of(operator, shape, precision) for shape in shapes_of(name, read_sweep("standard"), precision)
    }


def us(size_bytes: float, traffic: Traffic, precision: str, reached: float) -> float:
    """The time of so many bytes and of the pass's FLOPs, whichever takes longer."""
    bytes_per_us = SYSTEM.gpu.memory_bandwidth_gb_per_s.value * 1e3 * reached
    flop_per_us = SYSTEM.gpu.peak_tflop_per_s[precision].value * 1e6 * reached
    return max(size_bytes / bytes_per_us, traffic.flops / flop_per_us)


def ideal_rows(name: str, direction: Direction, precision: str, free_bytes: float = 0.0) -> list[Row]:
    """Rows of the kernels one after the other, with so many bytes of each call for free."""
    rows = []
    for shape, passes in measured(name, precision).items():
        traffic = passes[direction]
        time_us = us(max(traffic.size_bytes - free_bytes, 0.0), traffic, precision, REACHED)
        time_us = max(time_us, traffic.kernels * KERNEL_US)
        rows.append(Row(catalogue()[name], name, direction, shape, time_us))
    return rows


def fused_rows(name: str, direction: Direction, precision: str) -> list[Row]:
    """Rows of a single kernel that reads or writes every tensor once."""
    times = {
        shape: max(us(passes[direction].least_bytes, passes[direction], precision, REACHED), KERNEL_US)
        for shape, passes in measured(name, precision).items()
    }
    return [Row(catalogue()[name], name, direction, shape, time_us) for shape, time_us in times.items()]


def assert_kept(rows: Sequence[Row], precision: str) -> None:
    """Nearly every row of every operator passes the gate."""
    for name, column in gate(rows, SYSTEM, precision).columns.items():
        assert column.kept >= LEAST_KEPT * column.rows, (name, column)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("regressor", sorted({catalogue()[name].regressor_name for name in OPERATORS}))
def test_rows_of_an_ideal_gpu_are_kept(regressor: str, precision: str) -> None:
    members = families()[regressor]
    for direction in members[0].directions:
        rows = [row for member in members for row in ideal_rows(member.name, direction, precision)]
        assert_kept(rows, precision)
        in_cache = [row for member in members for row in ideal_rows(member.name, direction, precision, CACHE_BYTES)]
        for name, column in gate(in_cache, SYSTEM, precision).columns.items():
            assert not set(column.dropped) & set(IMPOSSIBLE), (name, column)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in READS_TWICE])
def test_rows_of_a_fused_kernel_are_kept(name: str, precision: str) -> None:
    operator = catalogue()[name]
    for direction in operator.directions:
        # Two products backward, each of which reads the gradient; no library runs them as one.
        if direction is BACKWARD and operator.extra_kinds[: len(MATMUL_EXTRAS)] == MATMUL_EXTRAS:
            continue
        if operator.family == "":  # a family is judged together
            assert_kept(fused_rows(name, direction, precision), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OPERATORS)
def test_rows_twice_as_fast_as_possible_are_dropped(name: str, precision: str) -> None:
    for direction in catalogue()[name].directions:
        if direction is BACKWARD and name in KEEPS_INTERMEDIATES:
            continue
        large = 0
        for shape, passes in measured(name, precision).items():
            traffic = passes[direction]
            if traffic.least_bytes < LARGE_TIMES_CACHE * CACHE_BYTES:
                continue
            large += 1
            time_us = us(traffic.least_bytes, traffic, precision, reached=1.0) / 2.0
            row = Row(catalogue()[name], name, direction, shape, time_us)
            assert not gate([row], SYSTEM, precision).kept, (direction, shape)
        assert large, direction


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_loss_reads_logits_as_wide_as_its_shape_says(precision: str) -> None:
    tokens, vocab, wide = 64, 1024, 4
    assert all(shape[2] == wide for shape in measured("cross_entropy", precision))
    traffic = watched("cross_entropy", (tokens, vocab, wide), "meta", precision)[BACKWARD]
    assert traffic.least_bytes == pytest.approx(2 * wide * tokens * vocab, rel=0.01)
    with pytest.raises(ValueError, match="logit_bytes is 1; it must be 4"):
        build_function("cross_entropy")((tokens, vocab, 1), Maker("meta", precision))
