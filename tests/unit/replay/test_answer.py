"""What a replay says: the parts add up, the critical path is the one that counts, every output holds together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from predictor.core.report.stage_table import LABELS
from predictor.replay.answer import ReplayAnswer, answered, measured
from predictor.replay.breakdown import BACKWARD, DATA_PARALLEL, FORWARD, HOST, IDLE, OPTIMIZER, SYNC
from predictor.replay.critical import GAP
from predictor.replay.document import to_json
from predictor.replay.files.events import Category
from predictor.replay.files.kineto import read_trace
from predictor.replay.files.record_model import RecordError
from predictor.replay.page import page
from predictor.replay.record import read_record, write_records
from predictor.replay.text import render
from predictor.replay.trace_file import replay_trace
from predictor.replay.whatif.changes import Means
from tests.unit.traced_steps import cpu_rank, gpu_rank, step_of, two_buckets


def answer(*changes: str) -> ReplayAnswer:
    return answered(step_of(gpu_rank()), changes, Means(), ["a note"])


def test_parts_add_up_and_each_is_what_ran() -> None:
    (parts,) = answer().before.parts
    assert parts.step_us == pytest.approx(253.0)
    expected = {FORWARD: 60.0, BACKWARD: 100.0, DATA_PARALLEL: 50.0, OPTIMIZER: 20.0, HOST: 20.0, SYNC: 1.0, IDLE: 2.0}
    assert {name: us for name, us in parts.parts.items() if us} == pytest.approx(expected)
    assert (parts.exposed_us, parts.hidden_us) == (50.0, 0.0)


def test_traffic_beside_kernels_is_hidden() -> None:
    (parts,) = answered(step_of(two_buckets()), (), Means()).before.parts
    assert parts.hidden_us == pytest.approx(50.0)
    assert parts.parts[DATA_PARALLEL] == pytest.approx(50.0)


def test_words_are_those_of_a_predicted_step() -> None:
    assert {FORWARD, BACKWARD, HOST, DATA_PARALLEL, OPTIMIZER} < set(LABELS.values())


def test_the_measured_step_has_the_same_parts() -> None:
    told = answer()
    assert measured(told.before.step).parts == told.before.parts
    assert told.error == 0.0


def test_the_critical_path_adds_up_and_names_operators() -> None:
    told = answer()
    assert sum(share.path_us for share in told.before.path) == pytest.approx(253.0)
    first = told.before.path[0]
    assert (first.operator, first.kind, first.path_us, first.calls) == ("aten::mm", "kernel", 100.0, 1)
    latency = {share.operator: share.path_us for share in told.before.path if share.kind == GAP}
    assert latency == {"aten::addmm": 2.0, "Optimizer.step#Adam.step": 2.0}


def test_operators_are_listed_by_their_time_in_all() -> None:
    shown = answer().before.operators
    assert [share.total_us for share in shown] == sorted((share.total_us for share in shown), reverse=True)
    hidden = next(share for share in shown if (share.operator, share.kind) == ("aten::gelu", "host"))
    assert (hidden.total_us, hidden.path_us, hidden.calls) == (10.0, 0.0, 0)
    assert re.search(r"aten::gelu +host +0\.010 +4\.0% +-", render(answer(), top=20))


def test_what_moved_adds_up_to_the_difference() -> None:
    told = answer("kernel:gemm_backward=remove", "communication*=0")
    assert told.after is not None
    assert sum(move.change_us for move in told.moves) == pytest.approx(told.after.step_us - told.before.step_us)
    how = {(move.operator, move.kind): move.how for move in told.moves}
    assert how["aten::mm", "kernel"] == how["c10d::allreduce_", "collective"] == "left"


def test_a_faster_device_leaves_the_host_as_bottleneck() -> None:
    told = answer("kernel:*=x0")
    text = render(told)
    assert "New bottleneck: waiting for the host" in text
    joined = {move.operator for move in told.moves if move.how == "joined"}
    assert joined, "launches that the device waits for"


def test_text_without_changes() -> None:
    text = render(answer())
    assert text.startswith("Step time  253 µs   measured; ProfilerStep#3, 1 of 2 ranks, NVIDIA A100-SXM4-80GB")
    assert "Replay     253 µs   +0.00%" in text
    assert re.search(r"backward +39\.5% +0\.100\n", text)
    assert "Traffic: 0.050 ms, 0.050 ms of it exposed (19.8% of the step)." in text
    assert re.search(r"all_reduce +1 +2\.10 +0\.050 +- +data-parallel, exposed", text)
    assert text.endswith("Note: a note")
    assert all(len(line) <= 100 for line in text.splitlines())


def test_text_with_changes() -> None:
    text = render(answer("operator:aten::mm*=0.5", "gpu=H100"), top=1)
    assert "operator:aten::mm*=0.5: 1 call of 1 operator, forward and backward, 100 µs → 50 µs" in text
    assert "90 % interval" in text
    assert "analytic" in text
    assert re.search(r"ms, rank 0 +before +after +change", text)
    assert "and 1 more" not in text.partition("What moved")[0].partition("Critical path")[0]
    assert "more, each smaller" in text


def test_json_has_everything_and_is_plain() -> None:
    told = answer("operator:aten::mm*=0.5")
    document = json.loads(json.dumps(to_json(told, ["trace.json"]), allow_nan=False))
    assert document["format"] == "estimate-train-time/replay/1"
    assert document["measured"]["step_us"] == document["replayed"]["step_us"] == 253.0
    assert document["changed"]["step_us"] == 203.0
    assert document["changed"]["low_us"] is None
    assert document["changed"]["source"] == "measured"
    assert document["changes"][0] == {
        "set": "operator:aten::mm*=0.5",
        "what": "1 call of 1 operator, forward and backward",
        "before_us": 100.0,
        "after_us": 50.0,
        "notes": [],
    }
    assert document["replayed"]["collectives"][0]["waiting_us"] is None
    assert to_json(answer(), [])["changed"] is None


def test_every_key_of_the_json_is_documented() -> None:
    import predictor.replay.document as module

    text = (module.__doc__ or "") + (Path(__file__).resolve().parents[3] / "docs" / "replay.md").read_text("utf-8")
    document = to_json(answer("operator:aten::mm*=0.5"), [])

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*(keys(item) for key, item in value.items() if key != "parts"))
        return set().union(*map(keys, value)) if isinstance(value, list) else set()

    assert {key for key in keys(document) if key not in text} == set()


@pytest.mark.parametrize("changes", [(), ("operator:aten::mm*=0.5",)])
def test_the_page_shows_both_timelines_on_one_axis(changes: tuple[str, ...]) -> None:
    text = page(answer(*changes))
    assert text.count('class="timeline"') == 2
    below = "changed: operator:aten::mm*=0.5, 203 µs" if changes else "replayed, 253 µs"
    assert text.index("measured, 253 µs") < text.index(below)
    assert ("What moved" in text) is bool(changes)
    for word in ("critical path", "stream 7", "thread 1", FORWARD, DATA_PARALLEL):
        assert word in text
    assert "http" not in text.replace("http://www.w3.org", ""), "self-contained"


def test_the_trace_is_read_again(tmp_path: Path) -> None:
    told = answer("operator:aten::mm*=0.5")
    path = tmp_path / "out.json"
    path.write_text(json.dumps(replay_trace(told.shown, measured(told.before.step))), encoding="utf-8")
    trace = read_trace(path)
    names = [event.name for event in trace.events if event.category is Category.KERNEL]
    assert sorted(names) == sorted(2 * ["gemm_forward", "gelu_kernel", "gemm_backward", "adam_kernel", *NCCL])
    lasted = sorted(event.end_us - event.start_us for event in trace.events if event.name == "gemm_backward")
    assert lasted == pytest.approx([50.0, 100.0])
    steps = [event for event in trace.events if event.name == "ProfilerStep#3"]
    assert sorted(event.end_us for event in steps) == pytest.approx([203.0, 253.0])


NCCL = ["ncclDevKernel_AllReduce"]


def test_a_record_counts_every_microsecond_once_and_reads_back(tmp_path: Path) -> None:
    (path,) = write_records(tmp_path / "records", step_of(gpu_rank()))
    record = read_record(path)
    assert sum(sum(row.samples_us) for row in record.operators) == 180.0
    linear = next(row for row in record.operators if row.name == "aten::addmm")
    assert (linear.operator, linear.shape, linear.direction, linear.precision) == (
        "ffn_up",
        (512, 1024, 1024),
        "forward",
        "fp16",
    )
    (reduction,) = record.collectives
    assert (reduction.ranks, reduction.size_bytes, reduction.samples_us, reduction.waits_included) == (
        2,
        2 * 2**20,
        (50.0,),
        True,
    )
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(RecordError, match="is no traced step"):
        read_record(path)


def test_gaps_of_the_stream_that_computes_have_their_reasons() -> None:
    (gaps,) = answer().before.gaps
    assert gaps.row == "stream 7"
    assert {kind.value: us for kind, us in gaps.us.items() if us} == pytest.approx(
        {"launch-bound": 12.0, "sync-bound": 61.0}
    )
    assert measured(answer().before.step).gaps == [gaps]
    assert "Gaps of stream 7: 0.073 ms (28.9% of the step): 0.012 ms launch-bound, 0.061 ms sync-bound." in " ".join(
        render(answer()).split()
    )


def test_a_cpu_step_computes_on_its_thread() -> None:
    (parts,) = answered(step_of(cpu_rank()), (), Means()).before.parts
    assert {name: us for name, us in parts.parts.items() if us} == {FORWARD: 160.0, HOST: 5.0}
