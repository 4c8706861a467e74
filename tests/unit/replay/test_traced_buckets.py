"""Changes of traffic and of buckets, from JSON as the profiler writes it to the changed step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.replay.answer import ReplayAnswer, answered
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.whatif.changes import Means
from predictor.replay.whatif.traced_step import joined
from tests.unit.kineto_traces import PID, event, write

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
ENGINE = (PID, PID + 1)
EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
WEIGHT = (512, 512)
MIB = 2**20


class Traced:
    """Events of one rank that trains layers of 1 MiB of weights, with NCCL on stream 20."""

    def __init__(self, has_shapes: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self.has_shapes = has_shapes
        self._correlation = 0

    def launch(self, name: str, called: float, ran: tuple[float, float], stream: int, **args: Any) -> None:
        self._correlation += 1
        row = ENGINE if called >= 100.0 else (PID, PID)
        self.events.append(event("cuda_runtime", "cudaLaunchKernel", called, 3.0, row, correlation=self._correlation))
        args |= {"correlation": self._correlation, "device": 0, "stream": stream}
        self.events.append(event("kernel", name, ran[0], ran[1] - ran[0], (0, stream), **args))

    def forward(self, layers: int) -> None:
        for layer in range(layers):
            known: dict[str, Any] = {"Sequence number": layer + 1, "Fwd thread id": 0}
            self.events.append(event("cpu_op", "aten::mm", layer * 20.0, 18.0, **known))
            self.launch("gemm", layer * 20.0 + 5, (20 + layer * 20.0, 38 + layer * 20.0), 7)

    def layer(self, at: float, sequence: int, kernel: tuple[float, float], is_copied: bool = True) -> None:
        """Add the backward of a layer, whose gradient is copied behind its kernel, or taken as it is."""
        known: dict[str, Any] = {"Sequence number": sequence, "Fwd thread id": 1}
        self.events.append(event("cpu_op", f"{EVALUATE}MmBackward0", at, 10.0, ENGINE, **known))
        self.events.append(event("cpu_op", "MmBackward0", at + 1, 8.0, ENGINE, **known))
        self.launch("gemm_backward", at + 2, (kernel[0], kernel[1] - 2), 7)
        shapes = {"Input Dims": [list(WEIGHT)], "Input type": ["float"]} if self.has_shapes else {}
        self.events.append(event("cpu_op", EVALUATE + ACCUMULATE, at + 10, 8.0, ENGINE))
        self.events.append(event("cpu_op", ACCUMULATE, at + 11, 6.0, ENGINE, **shapes))
        if is_copied:
            self.launch("copy", at + 12, (kernel[1] - 2, kernel[1]), 7)

    def reduce(self, at: float, ran: tuple[float, float], numel: int, group: str = "dp", ranks: str = "[0, 2]") -> None:
        self.events.append(event("cpu_op", "c10d::allreduce_", at, 10.0, ENGINE))
        self.events.append(event("cpu_op", "nccl:all_reduce", at + 1, 8.0, ENGINE))
        says = {"Collective name": "allreduce", "In msg nelems": numel, "Out msg nelems": numel, "dtype": "Float"}
        says |= {"Group size": 2, "Process Group Name": group, "Process Group Ranks": ranks}
        self.launch(ALL_REDUCE, at + 3, ran, 20, **says)

    def waited(self, at: float) -> None:
        """Let the engine's stream wait for what NCCL has been given."""
        self.events.append(event("cuda_runtime", "cudaStreamWaitEvent", at, 1.0, ENGINE))

    def graph(self, folder: Path, end: float) -> LocalGraph:
        self.events.append(event("cuda_runtime", "cudaDeviceSynchronize", 450.0, end - 450.0))
        self.events.append(event("user_annotation", "ProfilerStep#1", 0.0, end))
        facts = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}
        path = write(folder / "trace.json", self.events, deviceProperties=[{"id": 0, "name": "NVIDIA A100"}], **facts)
        assert json.loads(path.read_text())["traceEvents"]
        return local_graph(read_trace(path))


def changed(local: LocalGraph, texts: Sequence[str]) -> ReplayAnswer:
    answer = answered(joined(global_graph([local])), texts, Means())
    assert answer.error == pytest.approx(0.0, abs=1e-3)
    return answer


def step_us(local: LocalGraph, *texts: str) -> float:
    after = changed(local, texts).after
    assert after is not None
    return after.step_us


def bounds_us(local: LocalGraph, *texts: str) -> tuple[float, float]:
    after = changed(local, texts).after
    assert after is not None
    assert after.bounds_us is not None
    return after.bounds_us


def notes(local: LocalGraph, *texts: str) -> str:
    return " ".join(changed(local, texts).applied[0].touched.notes)


def data_parallel(folder: Path, durations: Sequence[float], numels: Sequence[int] = ()) -> LocalGraph:
    """Return a step of a layer and a bucket for each duration; the first bucket takes the most gradients of all."""
    traced = Traced()
    traced.forward(len(durations))
    free = 0.0
    for number, us in enumerate(durations):
        at = 120.0 + 100.0 * number
        traced.layer(at, len(durations) - number, (at + 20, at + 40))
        begins = max(free, at + 45)
        traced.reduce(at + 25, (begins, begins + us), numels[number] if numels else 512 * 512)
        free = begins + us
    return traced.graph(folder, max(free, 450.0) + 20.0)


def late_launch(folder: Path) -> LocalGraph:
    """Return a step whose only bucket is launched 100 µs after its gradient is there."""
    traced = Traced()
    traced.forward(1)
    traced.layer(120.0, 1, (140.0, 160.0))
    traced.reduce(255.0, (265.0, 565.0), 512 * 512)
    return traced.graph(folder, 575.0)


def tensor_parallel(folder: Path, has_shapes: bool = True) -> LocalGraph:
    """Return a step in which the second layer's backward waits for an all-reduce of activations' gradients."""
    traced = Traced(has_shapes)
    traced.forward(2)
    traced.layer(120.0, 2, (140.0, 160.0))
    traced.reduce(145.0, (165.0, 205.0), 3000, "tp", "[0, 1]")
    traced.waited(158.0)
    traced.layer(170.0, 1, (207.0, 227.0))
    traced.reduce(195.0, (230.0, 530.0), 2 * 512 * 512)
    return traced.graph(folder, 540.0)


def test_the_traced_buckets_are_no_change(tmp_path: Path) -> None:
    local = data_parallel(tmp_path, (30.0, 200.0, 60.0))
    before = changed(local, ["bucket_mb=1"])
    assert before.after is not None
    assert before.after.step_us == before.before.step_us
    assert before.after.bounds_us is None


def test_other_buckets_have_the_scatter_of_the_traced_ones(tmp_path: Path) -> None:
    local = data_parallel(tmp_path, (30.0, 200.0, 60.0))
    answer = changed(local, ["bucket_mb=2"])
    assert answer.after is not None
    (cost,) = answer.after.step.costs.values()  # the last bucket has the gradients of a traced one
    assert cost.low_us <= 2 * 30.0
    assert cost.high_us >= 2 * 200.0
    assert "1 bucket of the same gradients as before kept the measured time" in notes(local, "bucket_mb=2")


@pytest.mark.parametrize("text", ["ranks=16", "link.bandwidth_GBps=100"])
def test_links_have_the_scatter_of_the_traced_collectives(tmp_path: Path, text: str) -> None:
    sizes = (512 * 512, 2 * 512 * 512, 4 * 512 * 512)
    even = changed(data_parallel(tmp_path, (30.0, 50.0, 90.0), sizes), [text]).after
    scattered = changed(data_parallel(tmp_path, (30.0, 250.0, 90.0), sizes), [text]).after
    assert even is not None
    assert scattered is not None
    first, other = next(iter(even.step.costs.values())), next(iter(scattered.step.costs.values()))
    assert other.high_us / other.us > 2.0 * first.high_us / first.us


@pytest.mark.parametrize("text", ["overlap=true", "overlap=false", "bucket_mb=1"])
def test_a_bucket_is_launched_before_it_starts(tmp_path: Path, text: str) -> None:
    assert step_us(late_launch(tmp_path), text) == pytest.approx(575.0)


def test_new_buckets_are_launched_behind_their_last_gradient(tmp_path: Path) -> None:
    """One bucket of two layers: it is launched as the one of the last layer was, 100 µs after its gradient."""
    traced = Traced()
    traced.forward(2)
    traced.layer(120.0, 2, (140.0, 160.0))
    traced.reduce(145.0, (165.0, 215.0), 512 * 512)
    traced.layer(170.0, 1, (190.0, 210.0))
    traced.reduce(305.0, (315.0, 465.0), 512 * 512)
    local = traced.graph(tmp_path, 475.0)
    after = changed(local, ["bucket_mb=25"]).after
    assert after is not None
    (bucket,) = after.step.added
    assert after.replay.spans[bucket].start_us == pytest.approx(315.0)


def test_smaller_buckets_are_launched_as_late_as_traced_ones(tmp_path: Path) -> None:
    traced = Traced()
    traced.forward(2)
    traced.layer(120.0, 2, (140.0, 160.0))
    traced.layer(140.0, 1, (160.0, 180.0))
    traced.reduce(255.0, (265.0, 465.0), 2 * 512 * 512)
    local = traced.graph(tmp_path, 475.0)
    after = changed(local, ["bucket_mb=1"]).after
    assert after is not None
    first, last = after.step.added
    # The host gave the copies of the gradients until 135 and 155, and the bucket started 110 µs after that.
    assert after.replay.spans[first].start_us == pytest.approx(245.0)
    assert after.replay.spans[last].start_us >= 265.0


def test_gradients_that_are_taken_as_they_are_wait_for_their_kernels(tmp_path: Path) -> None:
    traced = Traced()
    traced.forward(2)
    traced.layer(120.0, 2, (200.0, 300.0), is_copied=False)
    traced.layer(140.0, 1, (300.0, 400.0), is_copied=False)
    traced.reduce(160.0, (400.0, 600.0), 2 * 512 * 512)
    local = traced.graph(tmp_path, 610.0)
    after = changed(local, ["bucket_mb=1"]).after
    assert after is not None
    starts = [after.replay.spans[bucket].start_us for bucket in after.step.added]
    assert starts[0] >= 298.0
    assert starts[1] >= 398.0


@pytest.mark.parametrize("text", ["overlap=false", "bucket_mb=25", "overlap=true"])
def test_tensor_parallel_reductions_are_no_buckets(tmp_path: Path, text: str) -> None:
    local = tensor_parallel(tmp_path)
    assert {call.group: len(call.gradients) for call in local.collectives} == {"tp": 0, "dp": 2}
    assert step_us(local, text) == pytest.approx(540.0)


def test_reductions_of_batch_norm_in_the_group_of_the_buckets_are_none(tmp_path: Path) -> None:
    traced = Traced()
    traced.forward(2)
    traced.layer(120.0, 2, (140.0, 160.0))
    traced.reduce(145.0, (165.0, 175.0), 2 * 64 + 1)
    traced.layer(170.0, 1, (207.0, 227.0))
    traced.reduce(195.0, (230.0, 530.0), 2 * 512 * 512)
    assert [len(call.gradients) for call in traced.graph(tmp_path, 540.0).collectives] == [0, 2]


def test_buckets_whose_gradients_come_out_of_order_are_known_by_their_sum(tmp_path: Path) -> None:
    """The fourth gradient, of the second bucket, is there before the third one, of the first."""
    traced = Traced()
    traced.forward(5)
    for layer in range(4):
        traced.layer(120.0 + 20 * layer, 5 - layer, (140.0 + 20 * layer, 160.0 + 20 * layer))
    traced.reduce(205.0, (225.0, 325.0), 3 * 512 * 512)
    traced.layer(230.0, 1, (250.0, 270.0))
    traced.reduce(255.0, (330.0, 430.0), 2 * 512 * 512)
    assert [len(call.gradients) for call in traced.graph(tmp_path, 460.0).collectives] == [4, 1]


def test_without_sizes_the_largest_group_that_no_forward_pass_uses_has_the_buckets(tmp_path: Path) -> None:
    traced = Traced(has_shapes=False)
    traced.forward(2)
    traced.layer(120.0, 2, (140.0, 160.0))
    traced.reduce(145.0, (165.0, 205.0), 3000, "tp", "[0, 1]")
    traced.layer(170.0, 1, (207.0, 227.0))
    traced.reduce(195.0, (230.0, 530.0), 2 * 512 * 512, "dp", "[0, 2, 4, 6]")
    local = traced.graph(tmp_path, 540.0)
    assert {call.group: len(call.gradients) for call in local.collectives} == {"tp": 0, "dp": 2}


def test_where_no_size_tells_a_circle_names_the_group(tmp_path: Path) -> None:
    local = tensor_parallel(tmp_path, has_shapes=False)
    with pytest.raises(ConfigError) as refused:
        changed(local, ["overlap=false"])
    told = str(refused.value)
    assert told == (
        "--set overlap=false cannot be: gradients wait for all_reduce of group tp, so these collectives are no buckets "
        "of gradients"
    )


def test_one_size_does_not_tell_latency(tmp_path: Path) -> None:
    local = data_parallel(tmp_path, (50.0, 50.0))
    assert "Latency is not known" in notes(local, "ranks=64")
    assert "are of one size" in notes(local, "ranks=64")
    _, high = bounds_us(local, "ranks=64")
    assert high > 50.0 * 63, "all of it latency: 126 steps for 2"
    with pytest.raises(ConfigError, match="the latency of the links is not known"):
        changed(local, ["link.latency_us=1"])


def test_ranks_far_beyond_the_traced_are_marked(tmp_path: Path) -> None:
    local = data_parallel(tmp_path, (30.0, 50.0), (512 * 512, 2 * 512 * 512))
    assert "far beyond the 2 of the trace" in notes(local, "ranks=100000")
    assert "far beyond" not in notes(local, "ranks=16")


@pytest.mark.parametrize("text", ["link.bandwidth_GBps=1000", "link.latency_us=1"])
def test_times_that_fall_with_the_size_tell_neither_bandwidth_nor_latency(tmp_path: Path, text: str) -> None:
    local = data_parallel(tmp_path, (90.0, 30.0), (512 * 512, 2 * 512 * 512))
    with pytest.raises(ConfigError) as refused:
        changed(local, [text])
    assert "is not known, as the times of the step's collectives do not grow with their sizes" in str(refused.value)
    assert "inf" not in notes(local, "ranks=4")
