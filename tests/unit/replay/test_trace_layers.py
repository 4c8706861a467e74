"""The trace of a step: its layers, its memory and the traffic that it hides, as exact as the prediction."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from predictor.__main__ import main
from predictor.core.plan.loading import Loaded, prepare
from predictor.core.step.layer_spans import MOST_LAYER_SPANS, num_layer_spans, with_layers
from predictor.core.step.memory import GIB, step_memory
from predictor.core.step.memory_spans import PARTS, TOTAL, memory_counters
from predictor.core.step.prediction import Prediction, predict
from predictor.core.step.spans import step_trace
from predictor.core.timeline.in_flight import peak_in_flight
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.timeline.spans import Span
from predictor.core.timeline.trace import RECOMPUTE, StepTrace, read_spans
from tests.unit.examples import full_form, write

EXPERTS = {"num_experts": 4, "experts_per_token": 1, "num_dense_layers": 1, "expert_ffn_hidden_size": 2048}
SMALL_PIPELINE = {"pipeline_parallel_size": 4, "data_parallel_size": 2}
SHARDED = {
    "data_parallel_size": 8,
    "zero_stage": 3,
    "overlap_gradient_reduction": True,
    "overlap_parameter_gather": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "one GPU": full_form(training={"recompute": "full"}),
    "fsdp": full_form(system="H100", parallelism=SHARDED),
    "pipeline": full_form(
        parallelism={**SMALL_PIPELINE, "tensor_parallel_size": 2},
        training={"num_micro_batches": 8, "framework": "pytorch"},
    ),
    "uneven": full_form(parallelism={"pipeline_parallel_size": 2, "layers_per_stage": [5, 3]}),
    "experts": full_form(system="H100", model={"moe": EXPERTS}, parallelism={**SMALL_PIPELINE, "zero_stage": 1}),
    "further tokens": full_form(system="H100", model={"moe": EXPERTS, "num_mtp_layers": 2}),
    "adapters": full_form(training={"lora": {"rank": 16}}),
    "some recomputed": full_form(training={"recompute": "full", "recompute_num_layers": 3}),
}
for schedule in SCHEDULES.values():
    degrees = {"pipeline_parallel_size": 4, "schedule": schedule.name}
    chunks = {"virtual_pipeline_parallel_size": 2} if schedule.chunks else {}
    CONFIGS[schedule.name] = full_form(parallelism=degrees | chunks, training={"num_micro_batches": 8})


def predicted(name: str) -> tuple[Loaded, Prediction]:
    loaded = prepare(CONFIGS[name], Path.cwd())
    return loaded, predict(loaded.run, loaded.system)


def layered(name: str) -> tuple[Prediction, StepTrace, StepTrace]:
    """Return a prediction, its trace without layers, and with them."""
    loaded, prediction = predicted(name)
    plain = step_trace(prediction)
    return prediction, plain, with_layers(plain, prediction, loaded.system)


def layers_of(trace: StepTrace, slot: Span) -> list[Span]:
    """Return what a slot runs."""
    inside = [span for span in trace.spans if span.depth == 1 and (span.rank, span.stream) == (slot.rank, slot.stream)]
    return [span for span in inside if slot.start_us - 1e-6 <= span.start_us and span.end_us <= slot.end_us + 1e-6]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_largest_memory_of_a_stage_is_the_predicted_one(name: str) -> None:
    _, prediction = predicted(name)
    counters = memory_counters(prediction, step_trace(prediction))
    for stage, memory in enumerate(step_memory(prediction.tasks)):
        of_stage = [counter for counter in counters if counter.rank == stage]
        totals = {counter.at_us: counter.values["total"] for counter in of_stage if counter.name == TOTAL}
        parts = {counter.at_us: counter.values for counter in of_stage if counter.name == PARTS}
        assert max(totals.values()) == pytest.approx(memory.total / GIB, rel=1e-12)
        assert {at: sum(values.values()) for at, values in parts.items()} == pytest.approx(totals)
        last = parts[max(parts)]
        assert (last["activations"], last["at work"]) == (0.0, 0.0)
        assert last["allowance"] > 0.0


@pytest.mark.parametrize("name", ["1f1b", "all_forward_all_backward", "interleaved_1f1b", "zero_bubble_h1"])
def test_activations_rise_and_fall_by_one_micro_batch_at_a_time(name: str) -> None:
    _, prediction = predicted(name)
    counters = memory_counters(prediction, step_trace(prediction))
    num_chunks = len(prediction.tasks.stages[1].chunks)
    peak = peak_in_flight(SCHEDULES[name], 1, 4, 8, num_chunks)
    curve = [c.values["activations"] for c in counters if (c.rank, c.name) == (1, PARTS)]
    one = max(curve) / peak
    levels = [value / one for value in curve]
    assert levels == pytest.approx([round(level) for level in levels], abs=1e-6)
    changes = Counter(round(after - before) for before, after in pairwise(levels))
    assert set(changes) <= {-1, 0, 1}, "a backward pass frees as much as a forward pass keeps"
    assert changes[1] == changes[-1] > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_fill_their_slot_and_are_all_there_once(name: str) -> None:
    prediction, _, trace = layered(name)
    seen: dict[tuple[object, object], list[str]] = defaultdict(list)
    for slot in trace.slots:
        layers = layers_of(trace, slot)
        assert sum(layer.duration_us for layer in layers) == pytest.approx(slot.duration_us)
        numbers = [int(layer.name.split()[1]) for layer in layers if layer.name.startswith("layer ")]
        assert numbers == sorted(numbers, reverse=slot.details["pass"] != "forward")
        seen[slot.details["pass"], slot.details["micro_batch"]] += [layer.name for layer in layers]
    every = [f"layer {number}" for number in range(prediction.run.model.num_layers)]
    for names in seen.values():
        assert sorted(name for name in names if name.startswith("layer ")) == sorted(every)
    ends = {name for names in seen.values() for name in names} - set(every)
    assert ends >= ({"embedding", "output and loss"} if len(prediction.stages) > 1 else {"embedding, output and loss"})
    assert num_layer_spans(prediction) >= sum(span.depth == 1 for span in trace.spans)


@pytest.mark.parametrize("name", CONFIGS)
def test_parts_of_layers_add_up_to_the_parts_of_slots(name: str) -> None:
    _, plain, trace = layered(name)

    def sums(spans: list[Span]) -> dict[tuple[int, str], float]:
        added: dict[tuple[int, str], float] = defaultdict(float)
        for span in spans:
            added[span.rank, span.name] += span.duration_us
        return added

    inside = [span for span in trace.spans if span.depth == 2]
    named = {span.name for span in plain.spans if span.depth == 1}
    whole = [span._replace(name="kernels") for span in trace.spans if span.depth == 1]
    around = {(span.rank, span.start_us) for span in inside}
    whole = [span for span in whole if (span.rank, span.start_us) not in around]  # made of kernels alone
    assert named >= {span.name for span in inside}
    assert sums([*inside, *whole]) == pytest.approx(sums([span for span in plain.spans if span.depth == 1]))
    assert [s for s in trace.spans if not s.depth] == [s for s in plain.spans if not s.depth]


def test_layers_that_predict_further_tokens_have_names_of_their_own() -> None:
    _, _, trace = layered("further tokens")
    names = [layer.name for layer in layers_of(trace, trace.slots[0])]
    assert names[7:] == ["layer 7", "further token 1", "further token 2", "embedding, output and loss"]


def test_layers_differ_where_the_model_has_them_differ() -> None:
    _, _, trace = layered("experts")
    first = next(slot for slot in trace.slots if slot.rank == 0 and slot.details["pass"] == "forward")
    times = {layer.name: layer.duration_us for layer in layers_of(trace, first)}
    assert times["layer 0"] != pytest.approx(times["layer 1"], rel=0.01), "the first layer has no experts"
    _, _, trace = layered("some recomputed")
    backward = next(slot for slot in trace.slots if slot.details["pass"] == "backward")
    again = [span.start_us for span in trace.spans if span.name == RECOMPUTE and span.end_us <= backward.end_us]
    layers = [layer for layer in layers_of(trace, backward) if any(layer.start_us == at for at in again)]
    assert [layer.name for layer in layers] == ["layer 2", "layer 1", "layer 0"]


def test_hidden_traffic_says_what_it_sends() -> None:
    _, _, trace = layered("fsdp")
    hidden = [span for span in trace.spans if span.stream == "communication"]
    assert {span.name for span in hidden} == {"data-parallel traffic"}
    by_pass = {span.details["pass"]: span.details for span in hidden}
    weights = 7 * 12 * 2048**2 * 2  # in 16 bits; those of the first of eight layers have nothing to hide beside
    assert by_pass["forward"]["collectives"] == {"all_gather": 7}
    assert int(str(by_pass["forward"]["sent_bytes"])) == pytest.approx(weights * 7 / 8, rel=1e-3)
    assert set(by_pass["backward"]["collectives"]) == {"all_gather", "reduce_scatter"}  # type: ignore[call-overload]


def test_messages_and_reductions_say_what_they_send() -> None:
    prediction, _, trace = layered("pipeline")
    messages = [span for span in trace.spans if span.stream in ("pipeline send", "pipeline receive")]
    share = 2 * 2048 * 2048 * 2 // 2  # samples × tokens × width × bytes, over two tensor-parallel ranks
    assert messages
    assert all(span.details["collectives"] == {"point_to_point": 1} for span in messages)
    assert {span.details["sent_bytes"] for span in messages} == {share}
    assert all({"micro_batch", "from_stage", "to_stage"} <= set(span.details) for span in messages)
    for stage, tasks in enumerate(prediction.tasks.stages):
        (reduced,) = (span for span in trace.spans if span.rank == stage and span.name == "gradient reduction")
        gradients = 2 * tasks.parameters  # in 16 bits; an all-reduce of two ranks sends them once
        assert reduced.details["collectives"] == {"all_reduce": 1}
        assert int(str(reduced.details["sent_bytes"])) == pytest.approx(gradients, rel=1e-3)


def events(*options: str, path: Path) -> list[dict[str, Any]]:
    out = path.with_suffix(".json")
    assert main(["timeline", str(path), "--trace", str(out), *options]) == 0
    listed: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["traceEvents"]
    return listed


def test_the_file_has_layers_and_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(CONFIGS["pipeline"], tmp_path / "c.yml")
    written = events(path=path)
    counters = [event for event in written if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {TOTAL, PARTS}
    assert {event["pid"] for event in counters} == {1, 2, 3, 4}
    assert all(event["ts"] >= 0.0 and event["args"] for event in counters)
    assert {span.depth for span in read_spans(path.with_suffix(".json"))} == {0, 1, 2}
    assert not [event for event in events("--no-layers", path=path) if event["name"].startswith("layer ")]
    assert "left out" not in capsys.readouterr().out


def test_layers_of_a_long_step_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = full_form(training={"num_micro_batches": MOST_LAYER_SPANS // 16})
    path = write(long, tmp_path / "c.yml")
    assert not [event for event in events(path=path) if event["name"].startswith("layer ")]
    assert "passes of layers are left out, --layers writes them" in capsys.readouterr().out
    assert [event for event in events("--layers", path=path) if event["name"].startswith("layer ")]
