"""The bottleneck of a replayed step is the part that shortens it, not the one that fills most of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.replay.answer import Replayed, answered, replayed
from predictor.replay.breakdown import BACKWARD, DATA_PARALLEL, HOST, IDLE, OPTIMIZER, SYNC, part_names
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.text import bottleneck, render
from predictor.replay.whatif.changes import Means
from predictor.replay.whatif.traced_step import joined
from tests.traces_made import make_job
from tests.unit.hand_made_traces import COMPUTE, NCCL, HandMade
from tests.unit.traced_steps import gpu_rank, step_of


def slow_host() -> Replayed:
    """A collective is alone on the device for most of 100 µs, while the host that ends the step goes on."""
    made = HandMade()
    made.step(0, 100)
    made.operator("aten::mm", 1, 5)
    made.launch("gemm", (2, 4), (6, 15), COMPUTE)
    made.operator("c10d::allreduce_", 6, 10)
    made.launch("ncclDevKernel_AllReduce", (7, 9), (16, 88), NCCL)
    made.operator("aten::item", 11, 99)
    return replayed(joined(global_graph([made.graph()])))


def test_traffic_that_delays_nothing_is_no_bottleneck() -> None:
    step = slow_host()
    (parts,) = step.parts
    assert max(parts.parts, key=lambda part: parts.parts[part]) == DATA_PARALLEL
    assert step.bottleneck is not None
    assert step.bottleneck.part == HOST
    assert step.bottleneck.gain == pytest.approx(0.1, abs=0.002)


def test_the_bottleneck_says_what_a_tenth_of_it_is_worth() -> None:
    told = answered(step_of(gpu_rank()), [], Means())
    assert bottleneck(told) == f"Bottleneck: {BACKWARD}; a tenth less of it shortens the step by 4.0%."
    assert bottleneck(told) in " ".join(render(told).split())


def test_before_and_after_a_change() -> None:
    step = step_of(gpu_rank())
    assert bottleneck(answered(step, ["communication*=0.5"], Means())) == (
        f"Bottleneck as before: {BACKWARD}; a tenth less of it shortens the step by 4.4%, before by 4.0%."
    )
    told = bottleneck(answered(step, ["kernel:*=x0"], Means()))
    assert told.startswith(f"New bottleneck: {HOST}; a tenth less of it shortens the step by ")
    assert told.endswith(f"; before it was {BACKWARD}, 4.0%.")


def test_a_step_of_waits_has_none() -> None:
    made = HandMade()
    made.step(0, 100_000)
    made.call("cudaEventSynchronize", 0, 99_999)
    told = answered(joined(global_graph([made.graph()])), [], Means())
    assert bottleneck(told) == ("Bottleneck: no part alone; a tenth less of any shortens the step by less than 0.1%.")


@given(
    st.lists(st.lists(st.integers(5, 200), min_size=3, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(5, 200), min_size=3, max_size=3),
    st.integers(1, 90),
    st.integers(5, 200),
)
@settings(max_examples=40, deadline=None)
def test_no_other_part_shortens_the_step_more(
    computing: list[list[int]], transfers: list[int], launch_us: int, optimizer_us: int
) -> None:
    made = make_job(computing, transfers, launch_us=launch_us, optimizer_us=optimizer_us)
    step = joined(global_graph(made.locals))
    told = replayed(step)
    names = part_names(step)
    gains = {
        part: 1.0 - step.with_factor([at for at, name in enumerate(names) if name == part], 0.9) / told.step_us
        for part in {*names, OPTIMIZER} - {IDLE, SYNC}
    }
    best = max(gains.values())
    assert (told.bottleneck.gain if told.bottleneck else 0.0) == pytest.approx(best, abs=1.1e-3)
