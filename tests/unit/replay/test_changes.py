"""Changes of a traced step move what they name, by as much as they say, and refuse the rest in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.costs.cost import Cost, Source
from predictor.replay.answer import answered
from predictor.replay.graph.local_graph import Edge, EdgeKind, LocalGraph, TaskKind, TracedTask
from predictor.replay.precision.cost_sources import Pass, TracedTimes
from predictor.replay.precision.operator_graph import OperatorNode, Precision
from predictor.replay.whatif.changes import Means, apply_changes, settings_of
from predictor.replay.whatif.collective_times import fitted_links, timed_collectives
from predictor.replay.whatif.setting import parse_setting
from predictor.replay.whatif.traced_step import TracedStep
from tests.unit.traced_steps import (
    ALL_REDUCE,
    K_GELU,
    K_LINEAR,
    K_MM,
    LAUNCH_GELU,
    LAUNCH_REDUCE,
    cpu_rank,
    gpu_rank,
    step_of,
    two_buckets,
)

STEP_US = 253.0
NO_MEANS = Means()


def changed(*texts: str, local: LocalGraph | None = None, means: Means = NO_MEANS) -> TracedStep:
    step, applied = apply_changes(step_of(local or gpu_rank()), settings_of(texts), means)
    assert [each.text for each in applied] == list(texts)
    return step


def step_us(*texts: str, local: LocalGraph | None = None, means: Means = NO_MEANS) -> float:
    return changed(*texts, local=local, means=means).replay().makespan_us


def test_unchanged_it_takes_the_measured_time() -> None:
    assert step_of(gpu_rank()).replay().makespan_us == STEP_US


@pytest.mark.parametrize(
    ("text", "faster_us"),
    [
        ("operator:aten::linear*=0.5", 75.0),  # forward and backward
        ("operator:aten::mm*=0.5", 50.0),
        ("operator:Block_?*=0.5", 75.0),  # a scope
        ("operator:aten::gelu*=0", 10.0),
        ("operator:aten::gelu=remove", 10.0),  # the host has time to spare
        ("operator:aten::*=remove", 160.0),
        ("operator:Optimizer*=remove", 30.0),  # its launch, the latency of it, and the kernel
        ("kernel:gemm_*=remove", 150.0),
        ("kernel:gemm_backward*=2", -100.0),
        ("kernel:adam_kernel=remove", 30.0),
        ("kernel:gemm_*=x0.5", 75.0),
        ("communication*=0.5", 25.0),
        ("host*=0.5", 9.0),  # launches of the first kernel and of Adam
        ("launch_us=3", 12.0),
    ],
)
def test_a_change_moves_the_step(text: str, faster_us: float) -> None:
    assert step_us(text) == pytest.approx(STEP_US - faster_us)


def test_a_removed_kernel_is_not_launched() -> None:
    step = changed("kernel:gelu_kernel=remove")
    assert step.tasks[K_GELU].duration_us == step.tasks[LAUNCH_GELU].duration_us == 0.0
    assert step.tasks[K_LINEAR].duration_us == 50.0


def test_changes_apply_in_their_order() -> None:
    assert step_us("operator:aten::mm*=0.5", "operator:aten::mm*=0.5") == STEP_US - 75.0


def test_on_a_cpu_operators_take_the_thread_and_the_host_is_what_lies_between() -> None:
    assert step_us("operator:aten::mm*=0.5", local=cpu_rank()) == 115.0
    assert step_us("host*=0", local=cpu_rank()) == 160.0


def test_links_of_one_size_of_message_are_all_bandwidth() -> None:
    links = fitted_links(timed_collectives(step_of(gpu_rank())))
    assert links is not None
    sent = 2 * 2**20 * 2 * (2 - 1) / 2
    assert links.hop_us == 0.0
    assert links.bandwidth_gb_per_s == pytest.approx(sent / 50.0 / 1e3)


def test_twice_the_bandwidth_halves_the_collective() -> None:
    bandwidth = 2 * 2**20 / 50.0 / 1e3
    assert step_us(f"link.bandwidth_GBps={2 * bandwidth}") == pytest.approx(STEP_US - 25.0)
    assert step_us(f"link.bandwidth_GBps={bandwidth}") == pytest.approx(STEP_US)


def two_sizes() -> LocalGraph:
    """Return ``two_buckets`` over links of 20 µs per MiB and 5 µs a step: of 1 MiB in 30 µs, of 2 MiB in 50 µs."""
    local = two_buckets()
    tasks = list(local.tasks)
    tasks[ALL_REDUCE] = tasks[ALL_REDUCE]._replace(duration_us=30.0)
    early, late = local.collectives
    return replace(local, tasks=tasks, collectives=(early._replace(size_bytes=2**20), late))


def test_latency_counts_every_step_of_the_ring() -> None:
    assert step_us(local=two_sizes()) == STEP_US
    assert step_us("link.latency_us=15", local=two_sizes()) == pytest.approx(STEP_US + 20.0)  # 2 · (2 − 1) steps


def test_ranks_follow_the_ring() -> None:
    assert step_us("ranks=4") == pytest.approx(STEP_US + 25.0)  # 2 · 3/4 ÷ (2 · 1/2)
    assert step_us("ranks=2") == pytest.approx(STEP_US)
    assert step_us("ranks=1") == pytest.approx(STEP_US - 50.0)


def test_ranks_by_a_published_system_keep_the_measured_ratio_and_have_an_interval() -> None:
    step = changed("ranks=16", means=Means(system="Perlmutter"))
    cost = step.costs[ALL_REDUCE]
    assert cost.low_us < cost.us < cost.high_us
    low, high = step.bounds_us() or (0.0, 0.0)
    assert low < step.replay().makespan_us < high


def test_links_of_another_system_keep_the_measured_ratio() -> None:
    assert step_us("links=Perlmutter") == pytest.approx(STEP_US)
    faster = changed("links=H200")
    assert faster.tasks[ALL_REDUCE].duration_us < 50.0
    cost = faster.costs[ALL_REDUCE]
    assert cost.low_us < cost.us < cost.high_us
    assert step_us("links=H200", means=Means(system="H200")) == pytest.approx(STEP_US)


def test_overlap_off_reduces_after_the_last_gradient() -> None:
    local = two_buckets()
    base = step_of(local).replay().makespan_us
    assert base == STEP_US
    assert step_us("overlap=false", local=local) == pytest.approx(base + 50.0)
    assert step_us("overlap=true", local=local) == pytest.approx(base)


def test_one_bucket_of_all_gradients_waits_for_the_last() -> None:
    step = changed("bucket_mb=100", local=two_buckets())
    new = step.tasks[len(two_buckets().tasks) :]
    assert len(new) == 1
    assert new[0].after == (K_GELU, K_MM, LAUNCH_REDUCE)
    assert new[0].lags_us == (0.0, 0.0, 2.0)
    assert new[0].duration_us == pytest.approx(100.0)  # the bytes of both at the same bandwidth
    assert step.replay().makespan_us == pytest.approx(STEP_US + 50.0)


def test_the_traced_buckets_are_no_change() -> None:
    step = changed("bucket_mb=1", local=two_sizes())
    assert step.tasks == step_of(two_sizes()).tasks
    assert step.bounds_us() is None


def test_changes_of_traffic_apply_to_new_buckets_too() -> None:
    halved = changed("bucket_mb=100", "communication*=0.5", local=two_buckets())
    assert halved.tasks[-1].duration_us == pytest.approx(50.0)
    linked = changed("bucket_mb=100", "ranks=4", local=two_buckets())
    assert linked.tasks[-1].duration_us == pytest.approx(150.0)


def test_a_second_change_keeps_what_the_first_did_not_know() -> None:
    once, twice = changed("links=H200"), changed("links=H200", "ranks=2")
    assert twice.costs[ALL_REDUCE] == once.costs[ALL_REDUCE], "two ranks as before"
    moved = changed("gpu=H100", "precision:aten::linear=fp32", means=Means(costs_of=Twice)).costs[K_MM]
    before = changed("gpu=H100").costs[K_MM]
    assert (moved.us, moved.low_us, moved.high_us) == pytest.approx((2 * before.us, before.low_us, 4 * before.high_us))
    assert moved.source is max(before.source, Source.EXTRAPOLATED)


@pytest.mark.parametrize("texts", [("overlap=false", "bucket_mb=1"), ("bucket_mb=1", "overlap=false")])
def test_new_buckets_need_not_overlap(texts: tuple[str, str]) -> None:
    assert step_us(*texts, local=two_buckets()) == pytest.approx(STEP_US + 50.0)


def test_another_gpu_scales_kernels_and_says_by_what() -> None:
    answer = answered(step_of(gpu_rank()), ["gpu=H100"], Means())
    (note,) = answer.applied[0].touched.notes
    assert "from NVIDIA A100-SXM4-80GB (regressors of Perlmutter) to H100" in note
    assert "by regressors of both GPUs" in note
    assert "by memory bandwidths" in note, "Adam has no shapes"
    assert answer.after is not None
    assert answer.after.step_us < STEP_US
    low, high = answer.after.bounds_us or (0.0, 0.0)
    assert low < answer.after.step_us < high
    assert answer.after.step.tasks[ALL_REDUCE].duration_us == 50.0, "links stay"


def test_the_same_gpu_changes_nothing() -> None:
    assert step_us("gpu=Perlmutter") == pytest.approx(STEP_US)


class Twice:
    """Costs that are twice as traced; a cast takes 3 µs."""

    def __init__(self, local: LocalGraph, times: TracedTimes) -> None:
        self._times = times

    def _twice(self, node: OperatorNode, step_pass: Pass) -> Cost:
        us = self._times.us(node.label, step_pass)
        return Cost(2 * us, us, 4 * us, Source.EXTRAPOLATED)

    def forward(self, node: OperatorNode, precision: Precision) -> Cost:
        return self._twice(node, "forward")

    def backward(self, node: OperatorNode, precision: Precision) -> Cost:
        return self._twice(node, "backward")

    def cast(self, cast_from: Precision, cast_to: Precision, numel: int) -> Cost:
        return Cost(3.0, 3.0, 3.0, Source.INTERPOLATED)


@pytest.mark.parametrize(("precision", "casts_us"), [("fp32", 0.0), ("bf16", 6.0)])
def test_another_precision_reaches_backward_what_follows_and_the_casts_of_weights(
    precision: str, casts_us: float
) -> None:
    step = changed(f"precision:aten::linear={precision}", means=Means(costs_of=Twice))
    assert step.replay().makespan_us == pytest.approx(STEP_US + 50.0 + 10.0 + 100.0 + casts_us)  # GELU follows
    assert step.bounds_us() == pytest.approx((STEP_US + casts_us, STEP_US + 480.0 + casts_us))
    assert step.source is Source.EXTRAPOLATED


def test_precisions_of_a_gpu_come_from_its_data_sheet_where_nothing_else_knows_them() -> None:
    answer = answered(step_of(gpu_rank()), ["precision:aten::linear=fp32"], Means())
    (note,) = answer.applied[0].touched.notes
    assert "analytic" in note
    assert answer.ratio is not None
    assert answer.ratio > 2.0, "an A100 has a sixteenth of its fp16 peak in fp32"


REFUSED: dict[str, list[str]] = {
    "operatr:aten::mm*=0.5": ["operatr is no change", "Did you mean operator?"],
    "operator:aten::lineer*=0.5": ["matches aten::lineer", "Did you mean aten::linear?"],
    "operator:aten::mm=0.5": ["write operator:aten::mm*=0.5 or operator:aten::mm=remove"],
    "operator:aten::mm*=-1": ["'-1' is no number from 0"],
    "operator*=0.5": ["write operator:PATTERN"],
    "host:x*=0.5": ["write host without a pattern"],
    "kernel:nothing*=0.5": ["no kernel of the step matches nothing"],
    "launch_us*=3": ["launch_us is set, not scaled"],
    "ranks=1.5": ["1.5 is no whole number"],
    "ranks=0": ["'0' is no number"],
    "link.latency_us=1": ["the latency of the links is not known", "are of one size"],
    "overlap=maybe": ["expected overlap=true or overlap=false"],
    "bucket_mb=x": ["expected bucket_mb=25"],
    "links=H101": ["H101 is not a published system", "Did you mean H100?"],
    "gpu=H101": ["H101 is not a published system", "Did you mean H100?"],
    "precision:aten::linear=bf17": ["bf17 is no precision", "Did you mean bf16?"],
    "precision:nothing=bf16": ["no operator of a forward pass of the step matches nothing"],
    "precision:aten::linear=fp16": ["computes in fp16 already"],
    "precision:aten::gelu=bf16": ["aten::gelu cannot compute in bf16; it computes as its inputs are"],
    "nonsense": ["expected KEY=VALUE"],
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_changed_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        changed(text)
    message = str(refused.value)
    assert "\n" not in message
    assert text in message
    for part in REFUSED[text]:
        assert part in message, message


@pytest.mark.parametrize(
    ("texts", "local", "expected"),
    [
        (("ranks=4", "ranks=8"), gpu_rank, "contradicts --set ranks=4"),
        (("overlap=true", "overlap=false"), gpu_rank, "contradicts"),
        (("operator:a=remove", "operator:a*=2"), gpu_rank, "contradicts"),
        (("ranks=4",), cpu_rank, "no collective of known size"),
        (("communication*=2",), cpu_rank, "the step has no collectives"),
        (("overlap=false",), cpu_rank, "no collective of the step is known to reduce gradients"),
        (("gpu=H100",), cpu_rank, "the trace is of a CPU"),
        (("kernel:x=remove",), cpu_rank, "the trace has no kernel"),
        (("launch_us=3",), cpu_rank, "no kernel of the step was launched"),
    ],
)
def test_what_does_not_fit_the_trace_is_one_line(
    texts: tuple[str, ...], local: Callable[[], LocalGraph], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        changed(*texts, local=local())


def test_a_star_before_the_sign_belongs_to_the_factor_unless_it_removes() -> None:
    assert parse_setting("operator:aten::**=0.5").pattern == "aten::*"
    assert parse_setting("operator:aten::*=remove") == (
        "operator:aten::*=remove",
        "operator",
        "aten::*",
        False,
        "remove",
    )
    assert parse_setting("kernel:a=b*=2").pattern == "a=b"


def test_on_a_cpu_a_removed_collective_leaves_the_work_that_gave_it() -> None:
    local = cpu_rank()
    given = (Edge(0, 0.0, EdgeKind.LAUNCH),)
    reduction = TracedTask("gloo:all_reduce", TaskKind.COLLECTIVE, 0, 165.0, 50.0, given, -1)
    step = changed("kernel:gloo*=remove", local=replace(local, tasks=(*local.tasks, reduction)))
    assert [task.duration_us for task in step.tasks] == [100.0, 5.0, 60.0, 0.0]
