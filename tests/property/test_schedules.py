"""Schedules, their replay and its recording, for any number of stages, micro-batches and chunks."""

from __future__ import annotations

import math
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from predictor.core.timeline.allowed_sizes import check
from predictor.core.timeline.graph import replay_graph
from predictor.core.timeline.in_flight import flights, peak_in_flight
from predictor.core.timeline.order import Kind, stage_program
from predictor.core.timeline.pipeline import PASS_NAMES, Stream, pipeline_tasks
from predictor.core.timeline.replay import Replay, replay
from predictor.core.timeline.schedules import FORWARD, IN_GROUPS, SCHEDULES, Pass, Slot, messages_sent

DURATION = st.floats(0.0, 100.0)
# Instructions of one kind add up in any order: relative, not exact.
SAME = 1e-9


class Sizes(NamedTuple):
    """A schedule and what it is run on."""

    name: str
    stages: int
    micro_batches: int
    chunks: int
    blocking: bool


class Case(NamedTuple):
    """Everything that a replay takes."""

    sizes: Sizes
    forward: list[list[float]]
    backward: list[list[float]]
    weight: list[list[float]]
    transfer: float

    def replayed(self) -> Replay:
        """Return its replay."""
        name, _, micro_batches, _, blocking = self.sizes
        return replay(SCHEDULES[name], micro_batches, *self[1:], blocking)


@st.composite
def any_sizes(draw: st.DrawFn) -> Sizes:
    """Draw any schedule on any stages."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    if name == "interleaved_1f1b":
        stages, chunks = draw(st.integers(2, 6)), draw(st.integers(2, 4))
        sizes = Sizes(name, stages, stages * draw(st.integers(1, 4)), chunks, False)
        if draw(st.booleans()):  # groups of any size, the last one of what is left
            group, left = draw(st.integers(stages + 1, 3 * stages)), draw(st.integers(stages, 3 * stages))
            count = group * draw(st.integers(1, 3)) + draw(st.sampled_from([0, left % group]))
            name = f"{IN_GROUPS}{group}" if check(f"{IN_GROUPS}{group}", stages, count, chunks) is None else name
            sizes = Sizes(name, stages, count if "/" in name else sizes.micro_batches, chunks, False)
    elif name == "looped_bfs":  # with fewer micro-batches than stages a stage waits between its chunks
        stages = draw(st.integers(2, 6))
        sizes = Sizes(name, stages, draw(st.integers(stages, 3 * stages)), draw(st.integers(2, 4)), False)
    elif SCHEDULES[name].v_shaped:
        stages = draw(st.integers(2, 6))
        fewest = 2 * stages if name == "dualpipe_v" else 1
        sizes = Sizes(name, stages, draw(st.integers(fewest, fewest + 12)), 2, False)
    else:
        blocking = SCHEDULES[name].may_block and draw(st.booleans())
        sizes = Sizes(name, draw(st.integers(1, 9)), draw(st.integers(1, 12)), 1, blocking)
    assert check(name, *sizes[1:4]) is None
    return sizes


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw any schedule with any durations."""
    sizes = draw(any_sizes())
    chunks = st.lists(DURATION, min_size=sizes.chunks, max_size=sizes.chunks)
    durations = st.lists(chunks, min_size=sizes.stages, max_size=sizes.stages)
    weight = draw(durations) if SCHEDULES[sizes.name].splits_backward else []
    return Case(sizes, draw(durations), draw(durations), weight, draw(DURATION))


@given(any_sizes(), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_uniform_stages_take_the_closed_formula(sizes: Sizes, forward: float, backward: float) -> None:
    """m(f + b) + (p − 1)(f + b)/v: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; f and b of a whole stage.

    ZB-H1, with f = b = w: 3m + (p − 1) of them if m ≥ p: Qi et al. 2023, arXiv:2401.10241, table 2. ZB-V likewise in
    chunks, of which a stage has two: 6m + (p − 1), no stage waits once it has begun (Qi et al. 2024, arXiv:2405.15362,
    section 3.2). DualPipeV waits (p − 1)(F&B + B − 3W), a pair F&B being 3 and a whole backward pass B 2 of them
    (github.com/deepseek-ai/DualPipe, README, "Pipeline Bubbles").
    """
    name, stages, micro_batches, chunks, blocking = sizes
    one, two = [[forward / chunks] * chunks] * stages, [[backward / chunks] * chunks] * stages
    if SCHEDULES[name].splits_backward:
        found = replay(SCHEDULES[name], micro_batches, one, one, one, 0.0, blocking)
        if SCHEDULES[name].v_shaped:
            if micro_batches >= 2 * stages - 1:
                waits = (stages - 1) * (2 if name == "dualpipe_v" else 1)
                formula = (6 * micro_batches + waits) * forward / chunks
                assert math.isclose(found.makespan, formula, rel_tol=SAME)
        elif micro_batches >= stages:
            assert math.isclose(found.makespan, (3 * micro_batches + stages - 1) * forward, rel_tol=SAME)
        return
    found = replay(SCHEDULES[name], micro_batches, one, two, [], 0.0, blocking)
    formula = (micro_batches + (stages - 1) / chunks) * (forward + backward)
    assert math.isclose(found.makespan, formula, rel_tol=SAME)
    for busy in found.busy:
        assert math.isclose(busy, micro_batches * (forward + backward), rel_tol=SAME)


def hops(sizes: Sizes) -> int:
    """Return the messages of a micro-batch's way forward; where a V turns none is sent."""
    return sizes.stages * sizes.chunks - 1 - SCHEDULES[sizes.name].v_shaped


@given(cases())
def test_replay_never_deadlocks_and_never_beats_its_work(case: Case) -> None:
    found = case.replayed()
    micro_batches = case.sizes.micro_batches
    for stage in range(case.sizes.stages):
        work = micro_batches * sum(sum(kind[stage]) for kind in (case.forward, case.backward, case.weight) if kind)
        assert math.isclose(found.busy[stage], work, rel_tol=SAME, abs_tol=SAME)
        needed = found.busy[stage] + found.communicating[stage]
        assert found.finished[stage] >= needed * (1 - SAME)
    longest_path = sum(map(sum, case.forward)) + sum(map(sum, case.backward))
    longest_path += 2 * hops(case.sizes) * case.transfer
    assert found.makespan >= longest_path * (1 - SAME)


def _slower(durations: list[list[float]], stage: int, more: float) -> list[list[float]]:
    return [[one + more * (i == stage) for one in chunks] for i, chunks in enumerate(durations)]


@given(cases(), st.data())
def test_more_work_is_never_faster(case: Case, data: st.DataObject) -> None:
    before = case.replayed().makespan
    stage = data.draw(st.integers(0, case.sizes.stages - 1))
    more = data.draw(DURATION)
    step = SCHEDULES[case.sizes.name].period(case.sizes.stages)
    slower = [
        case._replace(forward=_slower(case.forward, stage, more)),
        case._replace(backward=_slower(case.backward, stage, more)),
        case._replace(weight=_slower(case.weight, stage, more)),
        case._replace(transfer=case.transfer + more),
        case._replace(sizes=case.sizes._replace(micro_batches=case.sizes.micro_batches + step)),
    ]
    for one in slower:
        assert one.replayed().makespan >= before * (1 - SAME)


@given(any_sizes())
def test_every_slot_happens_once_and_after_what_it_is_made_from(sizes: Sizes) -> None:
    name, stages, micro_batches, chunks, _ = sizes
    schedule = SCHEDULES[name]
    each = [(i, chunk) for i in range(micro_batches) for chunk in range(chunks)]
    for stage in range(stages):
        slots = schedule.order(stage, stages, micro_batches, chunks)
        assert sorted(slots) == sorted(Slot(kind, *one) for kind in schedule.passes for one in each)
        for one in each:
            order = [slots.index(Slot(kind, *one)) for kind in schedule.passes]
            assert order == sorted(order)


@given(any_sizes())
def test_every_message_that_blocks_has_two_sides(sizes: Sizes) -> None:
    name, stages, micro_batches, _, _ = sizes
    if not SCHEDULES[name].may_block:
        return
    sides: dict[Kind, list[tuple[int, Pass, int]]] = {Kind.SEND: [], Kind.RECEIVE: []}
    for stage in range(stages):
        for kind, direction, i in stage_program(SCHEDULES[name].order(stage, stages, micro_batches, 1), stage, stages):
            if kind is not Kind.COMPUTE:
                link = stage if (kind is Kind.SEND) is (direction is FORWARD) else stage - 1
                sides[kind].append((link, direction, i))
    assert sorted(sides[Kind.SEND]) == sorted(sides[Kind.RECEIVE])
    assert len(sides[Kind.SEND]) == 2 * micro_batches * (stages - 1)


def counted_in_flight(slots: list[Slot], released_by: Pass) -> int:
    """Return how many micro-batches' chunks are held at most if a pass frees them, slot by slot."""
    held = peak = 0
    for kind, _, _ in slots:
        held += (kind is FORWARD) - (kind is released_by)
        peak = max(peak, held)
    return peak


@given(any_sizes())
def test_no_stage_holds_more_than_its_schedule_allows(sizes: Sizes) -> None:
    name, stages, micro_batches, chunks, _ = sizes
    schedule = SCHEDULES[name]
    for stage in range(stages):
        slots = schedule.order(stage, stages, micro_batches, chunks)
        held = peak_in_flight(schedule, stage, stages, micro_batches, chunks)
        assert held == counted_in_flight(slots, schedule.passes[-1])
        if (
            schedule.v_shaped
        ):  # ZB-V no more than 1F1B, DualPipeV a chunk more; a stage of 1F1B holds p times two chunks
            assert held <= 2 * stages + (name == "dualpipe_v")
            assert held == min(2 * stages, 2 * micro_batches) or micro_batches < 2 * stages or name == "dualpipe_v"
            assert held == 2 * stages + 1 or name != "dualpipe_v"
        elif schedule.splits_backward:  # what only the gradient of the weights needs is less
            assert counted_in_flight(slots, Pass.BACKWARD) == min(stages - stage, micro_batches)


@given(any_sizes())
def test_the_fullest_moments_are_the_orders(sizes: Sizes) -> None:
    """Counted chunk by chunk over every slot, whatever each chunk keeps."""
    name, stages, micro_batches, chunks, _ = sizes
    schedule = SCHEDULES[name]
    kept = [1.0 + 0.3 * chunk for chunk in range(chunks)]
    for stage in range(stages):
        held = peak = 0.0
        for kind, _, chunk in schedule.order(stage, stages, micro_batches, chunks):
            held += kept[chunk] * ((kind is FORWARD) - (kind is schedule.passes[-1]))
            peak = max(peak, held)
        moments = flights(schedule, stage, stages, micro_batches, chunks)
        assert math.isclose(max(sum(map(math.prod, zip(at, kept, strict=True))) for at in moments), peak, rel_tol=SAME)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(2, 9), st.integers(2, 4))
def test_chunks_have_one_place_each(name: str, stages: int, chunks: int) -> None:
    schedule = SCHEDULES[name]
    chunks = 2 if schedule.v_shaped else chunks
    places = [schedule.virtual_stage(stage, chunk, stages) for stage in range(stages) for chunk in range(chunks)]
    assert sorted(places) == list(range(stages * chunks))
    for at in places:
        assert schedule.virtual_stage(*schedule.holder(at, stages), stages) == at
    sent = [messages_sent(schedule, stage, stages, chunks) for stage in range(stages)]
    assert sum(forward for forward, _ in sent) == sum(backward for _, backward in sent)
    assert sum(forward for forward, _ in sent) == stages * chunks - 1 - schedule.v_shaped


@given(cases())
def test_spans_run_every_slot_for_as_long_as_it_takes(case: Case) -> None:
    name, stages, micro_batches, chunks, blocking = case.sizes
    spans = replay_graph(pipeline_tasks(SCHEDULES[name], micro_batches, *case[1:], blocking)).spans
    durations = {"forward": case.forward, "backward": case.backward, "weight gradient": case.weight}
    orders = [SCHEDULES[name].order(stage, stages, micro_batches, chunks) for stage in range(stages)]
    slots = [span for span in spans if span.stream == Stream.COMPUTE]
    ordered = [(PASS_NAMES[slot.kind], slot.micro_batch, slot.chunk) for order in orders for slot in order]
    assert [tuple(slot.details.values()) for slot in slots] == ordered
    for stage in range(stages):
        clock = 0.0
        for slot in (one for one in slots if one.rank == stage):
            assert slot.start_us >= clock
            duration = durations[str(slot.details["pass"])][stage][int(str(slot.details["chunk"]))]
            assert math.isclose(slot.duration_us, duration, rel_tol=SAME, abs_tol=SAME * (1 + slot.end_us))
            clock = slot.end_us
    for stream in (Stream.SEND, Stream.RECEIVE):
        assert sum(span.stream == stream for span in spans) == 2 * micro_batches * hops(case.sizes)


@given(cases())
def test_no_slot_starts_before_its_message_is_there(case: Case) -> None:
    name, stages, micro_batches, _, blocking = case.sizes
    spans = replay_graph(pipeline_tasks(SCHEDULES[name], micro_batches, *case[1:], blocking)).spans
    made = {(span.rank, *span.details.values()): span for span in spans if span.stream == Stream.COMPUTE}
    for message in (span for span in spans if span.stream == Stream.RECEIVE):
        micro_batch, chunk, sender, receiver = (int(str(value)) for value in message.details.values())
        is_forward = message.name.startswith("activations")
        virtual = SCHEDULES[name].virtual_stage(sender, chunk, stages) + (1 if is_forward else -1)
        stage, needed_by = SCHEDULES[name].holder(virtual, stages)
        assert stage == receiver == message.rank
        kind = "forward" if is_forward else "backward"
        assert made[sender, kind, micro_batch, chunk].end_us <= message.start_us
        assert message.end_us <= made[stage, kind, micro_batch, needed_by].start_us
        tolerance = SAME * (1 + message.end_us)
        assert math.isclose(message.duration_us, case.transfer, rel_tol=SAME, abs_tol=tolerance)
