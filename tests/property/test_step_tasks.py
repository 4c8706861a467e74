"""What a step consists of, for any run: no layer lost, nothing counted twice, and what is alike expanded once."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.step import breakdown, composition, memory, stages
from predictor.core.step.breakdown import answers, stage_parts
from predictor.core.step.composition import time_step
from predictor.core.step.memory import step_memory
from predictor.core.step.prediction import predict
from predictor.core.step.spans import step_graph
from predictor.core.step.stages import time_stages
from predictor.core.timeline.graph import replay_graph
from predictor.core.workload import step_tasks
from predictor.core.workload.edges import edge_block, message_tasks
from predictor.core.workload.layout import Layout
from predictor.core.workload.parallelism_keys import ZeroStage
from predictor.core.workload.partition import uniform
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.sharding import first_differs
from predictor.core.workload.stage_end import stage_end
from predictor.core.workload.step_tasks import (
    BlockMemory,
    BlockTasks,
    ChunkTasks,
    EndTasks,
    HostWork,
    StageStates,
    StageTasks,
    StepTasks,
)
from predictor.core.workload.tasks import FORWARD, PassTasks, Task, shaped_task, stream_task
from predictor.core.workload.transformer import Activation, Attention, MixtureOfExperts
from predictor.core.workload.transformer_step import layer_block, transformer_step
from tests.unit.core.step.test_step_time import unit_system
from tests.unit.core.workload.test_workloads import GPT, RUN

EXPERTS = MixtureOfExperts(8, 2, 1024, num_dense_layers=2)
Calls = dict[tuple[str, str, tuple[int, ...], str], float]


@st.composite
def runs(draw: st.DrawFn) -> TrainingRun:
    """Draw a run: every schedule, experts, windows, ZeRO and recomputation."""
    pp = draw(st.sampled_from([1, 2, 4, 8]))
    schedule = draw(st.sampled_from(["1f1b", "all_forward_all_backward", "zero_bubble_h1", "interleaved_1f1b"]))
    num_chunks = draw(st.sampled_from([2, 3])) if schedule == "interleaved_1f1b" else 1
    layers = pp * num_chunks * draw(st.integers(1, 3))
    uneven = draw(st.integers(0, pp - 1)) if num_chunks == 1 else 0
    model = replace(
        GPT,
        num_layers=layers + uneven,
        experts=draw(st.sampled_from([None, EXPERTS])),
        attention=draw(st.sampled_from([Attention.FLASH, Attention.UNFUSED])),
        activation=draw(st.sampled_from(list(Activation))),
        sliding_window=draw(st.sampled_from([0, 128])),
        sliding_window_layers=draw(st.sampled_from([None, 1])),
        tied_embeddings=draw(st.booleans()),
    )
    return replace(
        RUN,
        model=model,
        layout=Layout(draw(st.sampled_from([1, 2])), pp, draw(st.sampled_from([1, 4])), gpus_per_node=4),
        layers_per_stage=tuple(uniform(layers + uneven, pp)),
        num_micro_batches=8,
        schedule=schedule,
        virtual_pipeline_parallel_size=num_chunks,
        zero_stage=draw(st.sampled_from(get_args(ZeroStage))),
        recompute=draw(st.sampled_from(list(Recompute))),
        sequence_parallel=draw(st.booleans()),
        blocking_transfers=False,
        overlap_gradient_reduction=draw(st.booleans()),
        overlap_parameter_gather=draw(st.booleans()),
        overlap_tensor_parallel=draw(st.booleans()),
    )


def add(calls: Calls, tasks: list[Task], times: float) -> None:
    for task in tasks:
        key = task.name, str(task.direction), task.shape, str(task.part)
        calls[key] = calls.get(key, 0.0) + task.times * times


def expanded(run: TrainingRun, stage: int) -> Calls:
    """Count a stage's calls layer by layer, without sharing."""
    calls: Calls = {}
    count, num_chunks = run.num_micro_batches, run.virtual_pipeline_parallel_size
    last = run.layout.pipeline_parallel_size - 1
    for chunk in range(num_chunks):
        blocks = [edge_block(run, (stage, chunk) == (0, 0), (stage, chunk) == (last, num_chunks - 1))]
        blocks += [layer_block(run, kind) for kind in run.layer_kinds(stage, chunk).elements()]
        for block in blocks:
            add(calls, block.calls(), count)
    for chunk in range(num_chunks):
        links = [stage > 0 or chunk > 0, stage < last or chunk < num_chunks - 1]
        add(calls, message_tasks(run), 2 * count * sum(links))
    add(calls, stage_end(run, stage, run.rank_parameters(stage)).calls(), 1)
    return calls


def counted(step: StepTasks, stage: int) -> Calls:
    calls: Calls = {}
    for task, times in step.calls(step.stages[stage]):
        add(calls, [task._replace(times=1.0)], times)
    return calls


def same(first: Calls, second: Calls) -> bool:
    return first == pytest.approx(second, rel=1e-9, abs=0.0)


@given(runs())
@settings(max_examples=80, deadline=None)
def test_no_layer_is_lost_and_every_call_is_there(run: TrainingRun) -> None:
    step = transformer_step(run)
    projections = 0.0
    for stage, tasks in enumerate(step.stages):
        assert tasks.num_layers == run.layers_per_stage[stage]
        assert same(counted(step, stage), expanded(run, stage))
        for chunk in tasks.chunks:
            for block, count in chunk.blocks:
                named = [task for task in block.forward.tasks if task.name == "qkv_projection"]
                projections += count * sum(task.times for task in named)
    assert projections == run.model.num_layers
    assert sum(stage.num_layers for stage in step.stages) == run.model.num_layers


@given(runs())
@settings(max_examples=40, deadline=None)
def test_a_breakdown_counts_the_calls_of_the_step(run: TrainingRun) -> None:
    system = unit_system()
    system.outside = lambda *_: None  # type: ignore[method-assign]
    prediction = predict(run, system)  # every call takes 10 µs
    answered = {
        (answer.operator.removesuffix(" (by bytes)"), answer.direction): answer.step_us
        for answer in answers(prediction, system)
    }
    most: dict[tuple[str, str], float] = defaultdict(float)
    for stage in range(len(prediction.stages)):
        calls: dict[tuple[str, str], float] = defaultdict(float)
        for (name, direction, _, _), times in expanded(run, stage).items():
            calls[name, direction] += times
        for key, times in calls.items():
            most[key] = max(most[key], times)
    assert answered.keys() == most.keys()
    assert all(abs(answered[key] - 10 * most[key]) <= 1e-6 for key in most)


@given(runs())
@settings(max_examples=40, deadline=None)
def test_equal_layers_share_an_object(run: TrainingRun) -> None:
    step = transformer_step(run)
    kinds = {run.model.kind(layer) for layer in range(run.model.num_layers)}
    blocks = {block for stage in step.stages for chunk in stage.chunks for block, _ in chunk.blocks}
    layers = [block for block in blocks if block.host is not None]
    leading = {step_chunk.blocks[1][0] for stage in step.stages for step_chunk in stage.chunks}
    assert len(kinds) <= len(layers) <= len(kinds) + (len(leading) if first_differs(run) else 0)
    assert len([block for block in blocks if block.host is None]) <= 4
    times = time_stages(unit_system(), step)
    for stage, stage_time in zip(step.stages, times, strict=True):
        for other, other_time in zip(step.stages, times, strict=True):
            assert (stage is other) == (stage_time is other_time)


def test_a_pipeline_of_128_equal_stages_holds_three() -> None:
    model = replace(GPT, num_layers=256)
    run = replace(RUN, model=model, layout=Layout(2, 128, 2, gpus_per_node=4), layers_per_stage=(2,) * 128)
    step = transformer_step(run)
    assert len(step.stages) == 128
    assert len(set(step.stages)) == 3
    assert len({block for stage in step.stages for chunk in stage.chunks for block, _ in chunk.blocks}) == 4


def test_any_workload_can_be_a_step() -> None:
    product, sum_ = shaped_task("ffn_up", (64, 128, 256), FORWARD), stream_task("sum", 1e6, RUN.call())
    one_pass = PassTasks([product, sum_], [])
    block = BlockTasks(
        one_pass,
        PassTasks([], []),
        PassTasks([product], []),
        [],
        HostWork(3.0, 0.0, 2.0, False),
        BlockMemory(7.0, 100.0),
    )
    end = EndTasks([], [], [product], [], buckets=1)
    stage = StageTasks(1, 1000, (ChunkTasks(((block, 5),)),), 0, end, StageStates(2e3, 2e3, 12e3, 500.0))
    step = StepTasks((stage,), [], 4, "all_forward_all_backward", False, False, False)
    (time,) = time_stages(unit_system(), step)
    assert time.whole.forward.cost.us == pytest.approx(5 * 10 * (1 + sum_.times))
    assert time.whole.backward.cost.us == pytest.approx(5 * 10)
    assert time.optimizer.us == 10
    timed = time_step(step, unit_system())
    (parts,) = stage_parts(timed)
    assert timed.step.us == pytest.approx(4 * (time.whole.forward.cost.us + time.whole.backward.cost.us) + 10)
    assert parts.step_us == pytest.approx(timed.step.us)
    assert replay_graph(step_graph(timed)).makespan_us == pytest.approx(timed.step.us)
    (memory,) = step_memory(step)
    assert (memory.states, memory.activations, memory.working, memory.buffers) == (16e3, 4 * 5 * 7, 100, 500)
    assert sum(times for task, times in step.calls(stage) if task is product) == 4 * 5 * 2 + 1


@pytest.mark.parametrize(
    "reader", [step_tasks, stages, composition, breakdown, memory], ids=lambda module: module.__name__
)
def test_step_tasks_timing_and_memory_import_no_workload(reader: ModuleType) -> None:
    tree = ast.parse(Path(reader.__file__ or "").read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    workloads = {module for module in modules if module.startswith("predictor.core.workload")}
    assert workloads <= {"predictor.core.workload.tasks", "predictor.core.workload.step_tasks"}
