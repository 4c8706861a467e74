"""Traffic beside kernels: closed forms against a simulation, units of FSDP against a replay, what collectives take."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.collectives import COLLECTIVES, Topology
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.interference import Call, Slowdown, channels, slowdown
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem, read_hardware, read_manifest
from predictor.core.step.overlap import added_us, overlapped
from predictor.core.step.stages import time_block
from predictor.core.timeline.graph import GraphTask, replay_graph
from predictor.core.workload.edges import edge_block
from predictor.core.workload.layout import Layout
from predictor.core.workload.parallelism_keys import GatherPrecision
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.sharding import groups_of
from predictor.core.workload.stage_end import stage_end
from predictor.core.workload.tasks import Part, Task
from predictor.core.workload.transformer_step import layer_block
from tests.layers import forward_pass
from tests.unit.core.plan.test_architectures import DENSE
from tests.unit.core.step.test_step_time import unit_system
from tests.unit.core.workload.test_workloads import RUN

LENGTHS = st.floats(0.0, 1000.0)
SHARDED = replace(
    RUN,
    layout=Layout(1, 1, 8, gpus_per_node=4),
    layers_per_stage=(8,),
    zero_stage=3,
    gradient_reduction="reduce_scatter",
    overlap_gradient_reduction=True,
    overlap_parameter_gather=True,
)


def simulated(traffic: float, window: float, buckets: int, factor: float) -> float:
    """Return when both are over: a bucket is ready with its part of the window, which is slower beside traffic."""
    clock, sent = 0.0, 0.0
    for bucket in range(buckets):
        left = window / buckets  # of the window, until this bucket is full
        behind = bucket * traffic / buckets - sent  # traffic that is ready
        while left > 1e-12:
            if behind > 1e-12:
                span = min(behind, left * factor)
                behind, left, sent = behind - span, left - span / factor, sent + span
            else:
                span, left = left, 0.0
            clock += span
    return clock + traffic - sent


@given(LENGTHS, LENGTHS, st.integers(1, 9), st.floats(1.0, 3.0))
def test_closed_form_equals_simulation(traffic: float, window: float, buckets: int, factor: float) -> None:
    expected = simulated(traffic, window, buckets, factor)
    closed = window + added_us(traffic, window, buckets, Slowdown(factor, 1.0, factor))
    assert closed == pytest.approx(expected, abs=1e-6)


@given(LENGTHS, LENGTHS, st.floats(1.0, 3.0))
def test_the_interval_holds_the_estimate(traffic_us: float, window_us: float, factor: float) -> None:
    traffic = Cost(traffic_us, 0.9 * traffic_us, 1.1 * traffic_us, Source.MEASURED)
    window = Cost(window_us, 0.9 * window_us, 1.1 * window_us, Source.MEASURED)
    added = overlapped(traffic, window, Slowdown(factor, 1.0, 2.0 * factor - 1.0)).added
    assert added.low_us <= added.us + 1e-9
    assert added.us <= added.high_us + 1e-9


def _hardware(name: str) -> Any:
    folder = REGRESSORS_FOLDER / name
    return read_hardware(folder, read_manifest(folder))


def test_channels_follow_the_links() -> None:
    h100 = _hardware("H100")
    assert channels(h100, 1, 8) == 24
    assert channels(h100, 16, 8) == 16
    assert channels(_hardware("Vista"), 16, 1) < 8  # one network card a node
    assert channels(_hardware("Perlmutter"), 1, 4) == 24


def test_kernels_lose_what_was_measured_beside_24_channels() -> None:
    h100 = _hardware("H100")
    gather = Call(COLLECTIVES["all_gather"], (100_000_000, 1, 8), 2000.0)
    beside_gather = slowdown(h100, [gather])
    assert beside_gather.factor == pytest.approx(1.70, abs=0.05)  # 80 % of the peak becomes 47 %
    assert beside_gather.low == pytest.approx(132 / (132 - 24))
    assert slowdown(_hardware("Perlmutter"), [gather]).factor == pytest.approx(1.8, abs=0.1)
    between = Call(COLLECTIVES["all_gather"], (100_000_000, 16, 8), 2000.0)
    assert 1.0 < slowdown(h100, [between]).factor < beside_gather.factor
    processor = h100.model_copy(update={"links": h100.links.model_copy(update={"engine": "processor"})})
    assert slowdown(processor, [gather]).factor == 1.0


def _system(collective_us: float) -> PublishedSystem:
    """Return a system on which a kernel takes 10 µs, and a collective as given."""

    def cost(operator: Operator, direction: Direction, shape: Shape) -> Cost:
        us = collective_us if operator.name in COLLECTIVES else 10.0
        return Cost(us, us, us, Source.MEASURED)

    plain = unit_system()
    return cast("PublishedSystem", SimpleNamespace(hardware=plain.hardware, name="unit", precision="fp16", cost=cost))


def _step_of_units(layers: int, run: TrainingRun, system: PublishedSystem) -> tuple[float, float]:
    """Return the forward and backward time of so many layers: the first, and others like each other."""
    first, other = (time_block(system, layer_block(run, DENSE, is_first=is_first)) for is_first in (True, False))
    return (
        first.forward.cost.us + (layers - 1) * other.forward.cost.us,
        first.backward.cost.us + (layers - 1) * other.backward.cost.us,
    )


def _replayed(layers: int, computing: float, gather: float, scatter: float) -> tuple[float, float]:
    """Return the same from a graph: a gather at most one unit ahead, all collectives in order on one stream."""
    forward: list[GraphTask] = []
    for unit in range(layers):
        ahead = (2 * unit - 3,) if unit > 1 else ()
        forward.append(GraphTask("gather", 0, "nccl", gather, ahead))
        forward.append(GraphTask("layer", 0, "compute", computing, (2 * unit,)))
    backward = [GraphTask("gather", 0, "nccl", 0.0)]  # of the last layer, beside the output projection
    layer = 0
    for unit in range(layers):
        computes = len(backward)
        backward.append(GraphTask("layer", 0, "compute", computing, (layer,)))
        if unit + 1 < layers:
            layer = len(backward)
            backward.append(GraphTask("gather", 0, "nccl", gather))
        backward.append(GraphTask("scatter", 0, "nccl", scatter, (computes,)))
    return replay_graph(forward).makespan_us, replay_graph(backward).makespan_us


@pytest.mark.parametrize("collective_us", [1.0, 10.0, 50.0])
def test_units_hide_traffic_as_a_replay_of_their_streams(collective_us: float) -> None:
    system, layers = _system(collective_us), 8
    forward, backward = _step_of_units(layers, SHARDED, system)
    alone = time_block(system, layer_block(replace(SHARDED, zero_stage=1, gradient_reduction="all_reduce"), DENSE))
    copies = 10.0  # of one kernel a pass; times of kernels by their bytes are not whole
    ahead, back = (
        sum(10.0 * task.times for task in tasks.tasks if task.part is not Part.DATA_PARALLEL)
        for tasks in (layer_block(SHARDED, DENSE).forward, layer_block(SHARDED, DENSE).backward)
    )
    assert alone.forward.cost.us < ahead < alone.forward.cost.us + 10 * copies
    gathers = len(groups_of(SHARDED, SHARDED.layer_parameters(DENSE))) * collective_us
    assert forward == pytest.approx(_replayed(layers, ahead, gathers, gathers)[0])
    assert backward == pytest.approx(_replayed(layers, back, gathers, gathers)[1], abs=2 * gathers)


def test_traffic_that_outlasts_its_layers_is_sent_in_turn() -> None:
    system, layers = _system(10_000.0), 8
    computing = sum(10.0 * task.times for task in layer_block(SHARDED, DENSE).forward.tasks)
    assert _step_of_units(layers, SHARDED, system)[0] == pytest.approx(_replayed(layers, computing, 10_000.0, 0.0)[0])


def test_weights_that_stay_are_gathered_once() -> None:
    def gathers(run: TrainingRun) -> float:
        block = layer_block(run, DENSE)
        return sum(task.times for task in block.calls() if task.name == "all_gather")

    assert gathers(SHARDED) == 2.0
    assert gathers(replace(SHARDED, reshard_after_forward=False)) == 1.0
    stages = replace(
        SHARDED, layout=Layout(1, 2, 8, gpus_per_node=4), layers_per_stage=(4, 4), reshard_after_forward=False
    )
    end = stage_end(stages, 0, stages.rank_parameters(0))
    assert gathers(stages) == 0.0
    assert sum(task.times for task in end.gather) == end.buckets == 5  # four layers and the root
    assert sum(task.times for task in end.reduction if task.name == "reduce_scatter") == 5


def test_without_prefetch_every_gather_is_exposed() -> None:
    system = _system(10.0)
    ahead, alone = (
        time_block(system, layer_block(replace(SHARDED, prefetch_units=units), DENSE)).forward for units in (1, 0)
    )
    assert not ahead.traffic.get(Part.DATA_PARALLEL, Cost(0, 0, 0, Source.MEASURED)).us
    assert alone.traffic[Part.DATA_PARALLEL].us == 10.0


def test_roots_scatter_is_exposed_and_an_end_without_a_root_hides_its_own() -> None:
    def hidden(run: TrainingRun) -> int:
        return len(edge_block(run, is_first=True, is_last=True).backward.overlaps)

    assert hidden(SHARDED) == 0
    assert hidden(replace(SHARDED, zero_stage=2)) == 1


def test_groups_share_out_and_replicas_sum() -> None:
    run = replace(SHARDED, zero_group_size=4)
    block = layer_block(run, DENSE)
    names = [task.name for overlap in block.backward.overlaps for task in overlap.traffic]
    assert names.count("reduce_scatter") == 1
    assert names.count("all_reduce") == 1
    (dense,) = groups_of(run, run.layer_parameters(DENSE))
    assert dense.sharing == Topology(1, 4)
    assert dense.replicas == Topology(2, 1)
    layout = Layout(1, 1, 16, gpus_per_node=4, expert_parallel_size=2)
    assert layout.expert_sharing_group(8).ranks == 4
    assert layout.expert_replica_group(8).ranks == 2
    assert layout.sharing_group(16) == layout.gradient_group()


def test_gathers_take_the_precision_of_the_wire() -> None:
    def sizes(precision: GatherPrecision | None) -> int:
        run = replace(SHARDED, gather_precision=precision, fp32_parameters=True)
        (gather,) = [task for task in layer_block(run, DENSE).calls() if task.name == "all_gather"][:1]
        return gather.shape[0]

    assert sizes("fp32") == 2 * sizes("bf16") == 4 * sizes("fp8")
    assert sizes(None) == sizes("fp16")


def test_chunks_hide_tensor_parallel_traffic() -> None:
    run = replace(RUN, layout=Layout(4, 1, 2, gpus_per_node=4), layers_per_stage=(8,), sequence_parallel=True)
    chunked = forward_pass(replace(run, overlap_linear_traffic=True), DENSE)
    whole = forward_pass(run, DENSE)

    def moved(tasks: list[Task], name: str) -> float:
        return sum(task.times for task in tasks if task.name == name)

    assert not moved(chunked.tasks, "all_gather")
    for name in ("all_gather", "reduce_scatter"):
        assert moved(chunked.calls(), name) == pytest.approx(moved(whole.calls(), name))
    (ffn_up,) = [task for task in chunked.tasks if task.name == "ffn_up"]
    (in_one,) = [task for task in whole.tasks if task.name == "ffn_up"]
    assert ffn_up.shape[0] * 4 == in_one.shape[0]
    assert ffn_up.times == 4 * in_one.times
    assert {overlap.buckets for overlap in chunked.overlaps} == {4, inf}
