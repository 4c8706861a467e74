"""The composition of a step, on a system whose every call costs the same, so that sums can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import PublishedSystem
from predictor.core.hardware.hardware import Quantity
from predictor.core.step.host import launch_us, waiting_us
from predictor.core.step.overlap import exposed
from predictor.core.step.prediction import predict
from predictor.core.step.stages import time_block
from predictor.core.workload.host_stack import layer_work
from predictor.core.workload.layout import Layout
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.tasks import Part
from predictor.core.workload.transformer_step import WITHOUT_GRAPH, layer_block, layer_launches
from tests.unit.core.workload.test_workloads import DENSE, RUN

UNIT = Cost(10.0, 8.0, 13.0, Source.INTERPOLATED)


def unit_system(**host: float) -> PublishedSystem:
    """Return a system on which every call takes 10 µs."""
    gpu = SimpleNamespace(name="unit", peak_tflop_per_s={"fp16": Quantity(value=312, source="test")})
    quantities = {name: Quantity(value=value, source="test") for name, value in host.items()}
    links = SimpleNamespace(engine="processor")  # traffic beside kernels takes nothing from them
    hardware: Any = SimpleNamespace(
        name="unit", gpu=gpu, host=quantities, links=links, calibration=None, processor=None
    )
    return cast(
        "PublishedSystem",
        SimpleNamespace(
            hardware=hardware,
            name="unit",
            gpu="unit",
            precision="fp16",
            has_own_operators=True,
            cost=lambda *_: UNIT,
            measured_kernels=frozenset(),  # no fused kernel, no product of a backward pass by itself
        ),
    )


def test_a_pass_is_the_sum_of_its_calls() -> None:
    forward = time_block(unit_system(), layer_block(RUN, DENSE)).forward
    calls = sum(task.times for task in layer_block(RUN, DENSE).forward.tasks)
    assert forward.cost.us == pytest.approx(10 * calls)
    assert forward.cost.low_us == pytest.approx(8 * calls)
    assert forward.traffic[Part.TENSOR_PARALLEL].us == 20


def test_one_stage_step_is_micro_batches_plus_the_end() -> None:
    run = replace(RUN, layout=Layout(1, 1, 1, gpus_per_node=4), layers_per_stage=(4,))
    result = predict(run, unit_system())
    stage = result.stages[0]
    passes = sum(one.cost.us for one in stage.whole.passes)
    assert result.step.us == pytest.approx(4 * passes + stage.optimizer.us)
    assert result.step.low_us < result.step.us < result.step.high_us
    assert result.bubble_us == 0


def test_parts_of_the_critical_stage_add_up_to_the_step() -> None:
    result = predict(RUN, unit_system())
    stage, timeline = result.stages[result.critical_stage], result.timeline
    busy, communicating = (x[result.critical_stage] for x in (timeline.busy, timeline.communicating))
    parts = busy + communicating + result.bubble_us + stage.exposed_reduction.us + result.closing.us
    assert result.step.us == pytest.approx(parts)


def test_all_layers_are_timed_whatever_the_split() -> None:
    for split in ((2, 2), (3, 1), (1, 3)):
        stages = predict(replace(RUN, layers_per_stage=split), unit_system()).stages
        assert tuple(stage.num_layers for stage in stages) == split


def test_recomputation_costs_a_forward_pass() -> None:
    times = {mode: predict(replace(RUN, recompute=mode), unit_system()).step.us for mode in Recompute}
    assert times[Recompute.NONE] < times[Recompute.SELECTIVE] < times[Recompute.FULL]


def test_overlap_hides_a_reduction_behind_the_backward_pass() -> None:
    reduction = Cost(100.0, 90.0, 110.0, Source.INTERPOLATED)
    window = Cost(1000.0, 900.0, 1100.0, Source.INTERPOLATED)
    assert exposed(reduction, window, buckets=1).us == 100
    assert exposed(reduction, window, buckets=4).us == 25
    assert exposed(reduction, window * 0.05, buckets=4).us == pytest.approx(62.5)


def test_host_decides_when_kernels_are_short() -> None:
    assert waiting_us(300.0, 200.0, synchronized=False) == 100
    assert waiting_us(300.0, 400.0, synchronized=False) == 0
    assert waiting_us(300.0, 400.0, synchronized=True) == 300


def test_host_time_is_launches_times_their_cost() -> None:
    system = unit_system(launch_forward_us=20.0, launch_backward_us=30.0).hardware
    forward = layer_block(RUN, DENSE).forward
    launches = layer_work(RUN)[0] + sum(task.launches for task in forward.calls())
    assert layer_launches(RUN, DENSE, forward) == pytest.approx(launches)
    assert layer_launches(RUN, DENSE, forward, records_graph=False) == pytest.approx(launches * WITHOUT_GRAPH)
    assert launch_us(system, launches, backward=False) == pytest.approx(20 * launches)
    assert launch_us(system, launches, backward=True) == pytest.approx(30 * launches)
    assert launch_us(unit_system().hardware, launches, backward=False) == 0


def test_synchronising_every_layer_adds_the_host_time() -> None:
    system = unit_system(launch_forward_us=1.0, launch_backward_us=1.0)
    alone, turns = (
        time_block(system, layer_block(replace(RUN, synchronize_each_layer=on), DENSE)).forward for on in (False, True)
    )
    assert alone.host.us == 0
    assert turns.cost.us == pytest.approx(alone.cost.us + turns.host.us)
