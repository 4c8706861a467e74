"""Traces of the profiler's versions and devices are read alike."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from predictor.replay.files.events import UNKNOWN, Category, RankTrace
from predictor.replay.files.kineto import read_trace
from tests.unit.kineto_traces import NVIDIA, PID, STREAM, event, flow, public_trace, training_steps, write, written

SEQUENCE: dict[str, Any] = {"Sequence number": 4}


def names(trace: RankTrace, category: Category) -> list[str]:
    return [item.name for item in trace.events if item.category is category]


def arrow_names(trace: RankTrace) -> list[tuple[str, str, str]]:
    return [(trace.events[a.before].name, trace.events[a.after].name, a.kind) for a in trace.arrows]


def test_a_step_has_threads_streams_and_launches(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, training_steps(1), **NVIDIA))
    assert [(row.is_gpu, row.process, row.name) for row in trace.rows] == [
        (False, str(PID), str(PID)),
        (True, "0", str(STREAM)),
        (False, str(PID), "4712"),
    ]
    assert arrow_names(trace) == [
        ("cudaLaunchKernel", "gemm", "launch"),
        ("cudaLaunchKernel", "gemm_backward", "launch"),
    ]
    assert (trace.backend, trace.device_name, trace.begin_us) == ("cuda", "NVIDIA A100-SXM4-80GB", 1000.0)
    kernel = next(item for item in trace.events if item.name == "gemm")
    assert (kernel.start_us, kernel.end_us, kernel.correlation) == (16.0, 46.0, 1)
    assert trace.notes == ()


@pytest.mark.parametrize(
    ("spelling", "category"),
    [
        ("Operator", Category.OPERATOR),
        ("cpu_op", Category.OPERATOR),
        ("Kernel", Category.KERNEL),
        ("kernel", Category.KERNEL),
        ("Memcpy", Category.COPY),
        ("gpu_memcpy", Category.COPY),
        ("Memset", Category.SET),
        ("Runtime", Category.RUNTIME),
        ("cuda_runtime", Category.RUNTIME),
        ("cuda_driver", Category.RUNTIME),
        ("cuda_sync", Category.SYNC),
        ("user_annotation", Category.ANNOTATION),
        ("gpu_user_annotation", Category.GPU_ANNOTATION),
        ("python_function", Category.PYTHON),
        ("overhead", Category.OTHER),
        ("something new", Category.OTHER),
    ],
)
def test_categories_of_all_versions(tmp_path: Path, spelling: str, category: Category) -> None:
    trace = read_trace(written(tmp_path, [event(spelling, "it", 1, 2)]))
    assert [item.category for item in trace.events] == [category]


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("external id", "External id"),
        ("Profiler Event Index", "Ev Idx"),
        ("Input dims", "Input Dims"),
        ("Input Types", "Input type"),
        ("Fwd thread id", "Fwd thread id"),
        ("In msg size", "In msg nelems"),
    ],
)
def test_older_keys_are_read_as_newer_ones(tmp_path: Path, spelling: str, key: str) -> None:
    trace = read_trace(written(tmp_path, [event("cpu_op", "aten::mm", 1, 2) | {"args": {spelling: 3}}]))
    assert dict(trace.events[0].args) == {key: 3}
    assert (trace.events[0].external == 3) == (key == "External id")


def test_numbers_that_say_nothing_are_unknown(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"External id": 0, "correlation": 0, "Sequence number": 2**64 - 1}
    odd: dict[str, Any] = {"External id": "12", "correlation": True, "Sequence number": None}
    repeated: dict[str, Any] = {"External id": 77, "correlation": 77}
    events = [event("cuda_runtime", "call", at, 1, **args) for at, args in enumerate((nothing, odd, repeated))]
    first, second, third = read_trace(written(tmp_path, events)).events
    assert (first.external, first.correlation, first.sequence) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert (second.external, second.correlation, second.sequence) == (12, UNKNOWN, UNKNOWN)
    # Older versions give a call its correlation as the id of its operator, where they know no operator.
    assert (third.external, third.correlation) == (UNKNOWN, 77)


def test_nanoseconds_stay_exact(tmp_path: Path) -> None:
    base = 4203669603187.439
    events = [event("cpu_op", "outer", base, 30.001), event("cpu_op", "inner", base + 10.0, 20.001)]
    trace = read_trace(written(tmp_path, events, baseTimeNanoseconds=1735632360000000000))
    outer, inner = trace.events
    assert (outer.start_us, outer.end_us) == (0.0, 30.001)
    assert (inner.start_us, inner.end_us) == (10.0, 30.001)
    assert trace.begin_us == pytest.approx(1735632360000000 + base, abs=0.5)


def test_nanoseconds_since_1970_stay_exact(tmp_path: Path) -> None:
    # 16 digits and three decimals: neighbouring floats lie a quarter of a microsecond apart.
    path = tmp_path / "trace.json"
    row = '"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1'
    path.write_text(
        f'{{"traceEvents": [{{{row}, "name": "outer", "ts": 1712867402348256.123, "dur": 30.001}},'
        f'{{{row}, "name": "inner", "ts": 1712867402348266.125, "dur": 19.999, "args": {{"x": 0.5}}}},'
        f'{{{row}, "name": "whole", "ts": 1712867402348300, "dur": 1}}]}}'
    )
    outer, inner, whole = read_trace(path).events
    assert (outer.start_us, outer.end_us) == (0.0, 30.001)
    assert (inner.start_us, inner.end_us, dict(inner.args)) == (10.002, 30.001, {"x": 0.5})
    assert whole.start_us == 43.877


def test_nanoseconds_of_late_times_stay_exact(tmp_path: Path) -> None:
    times = [8_123_456_789_012_439 + 1_001 * number for number in range(3000)]  # in ns, 94 days after the base
    path = tmp_path / "trace.json"
    row = '"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 0.5'
    lines = [f'{{{row}, "ts": {time // 1000}.{time % 1000:03}}}' for time in times]
    path.write_text(f'{{"traceEvents": [{", ".join(lines)}]}}')
    trace = read_trace(path)
    assert [round(item.start_us * 1000) for item in trace.events] == [time - times[0] for time in times]


def test_what_encloses_comes_first(tmp_path: Path) -> None:
    events = [event("cpu_op", "inner", 5, 10), event("cpu_op", "outer", 5, 20), event("cpu_op", "first", 1, 1)]
    assert [item.name for item in read_trace(written(tmp_path, events)).events] == ["first", "outer", "inner"]


def test_rocm(tmp_path: Path) -> None:
    events = [
        event("cuda_runtime", "hipLaunchKernel", 1, 2, correlation=3, stream="0x0"),
        event("kernel", "Cijk", 5, 2, (2, 0), device=2, stream=0, correlation=3),
    ]
    devices = [{"id": 0, "name": "other"}, {"id": 2, "name": "AMD Instinct MI250X"}]
    trace = read_trace(written(tmp_path, events, deviceProperties=devices))
    assert (trace.backend, trace.device_name) == ("rocm", "AMD Instinct MI250X")
    assert arrow_names(trace) == [("hipLaunchKernel", "Cijk", "launch")]


def test_cpu_only(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, [event("cpu_op", "aten::mm", 1, 2)], deviceProperties=[]))
    assert (trace.backend, trace.device_name, trace.rank, trace.world_size) == ("cpu", "", None, None)


def test_process_groups_rank_and_world(tmp_path: Path) -> None:
    job = {"rank": 2, "world_size": "4", "pg_config": [{"pg_name": "1", "ranks": [0, 2]}, {"pg_name": "2"}, 7]}
    trace = read_trace(written(tmp_path, training_steps(1), distributedInfo=job))
    assert (trace.rank, trace.world_size, dict(trace.groups)) == (2, 4, {"1": (0, 2)})


def test_a_rank_beyond_the_world_is_noted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, training_steps(1), distributedInfo={"rank": 4, "world_size": 4}))
    assert (trace.rank, trace.world_size) == (4, None)
    assert trace.notes == ("its rank is 4 of 4 ranks; the number of ranks is left unknown",)


@pytest.mark.parametrize("job", [{"rank": -1, "world_size": 0}, {"rank": True}, {"rank": "x"}, [], "rank 3", None])
def test_a_job_that_says_nothing(tmp_path: Path, job: object) -> None:
    trace = read_trace(written(tmp_path, training_steps(1), distributedInfo=job))
    assert (trace.rank, trace.world_size, trace.notes) == (None, None, ())


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("rank-00012.json", 12),
        ("trace_rank_7.pt.trace.json", 7),
        ("Rank=5.json", 5),
        ("franks1.json", None),
        ("trace_0.json", None),
        ("rank1_of_rank8.json", None),
    ],
)
def test_rank_by_the_name_of_the_file(tmp_path: Path, name: str, rank: int | None) -> None:
    assert read_trace(write(tmp_path / "run" / name, training_steps(1))).rank == rank


def test_rank_of_the_trace_wins_over_the_name(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "rank1.json", training_steps(1), distributedInfo={"rank": 0}))
    assert trace.rank == 0
    assert trace.notes == ("it is of rank 0 by its distributedInfo, and 1 by its name",)


def test_forward_and_backward_are_tied_by_flow_events(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::linear", 10, 8),
        event("cpu_op", "aten::addmm", 10, 7, **SEQUENCE),
        flow("s", 1, "fwdbwd", 10),
        event("cpu_op", "AddmmBackward0", 30, 8, (PID, 9), **SEQUENCE),
        flow("f", 1, "fwdbwd", 30, (PID, 9)),
        flow("s", 2, "fwdbwd", 11),  # within addmm
        flow("f", 2, "fwdbwd", 33, (PID, 9)),
        flow("s", 3, "fwdbwd", 99),  # nothing is there
        flow("f", 3, "fwdbwd", 30, (PID, 9)),
        flow("f", 4, "fwdbwd", 30, (PID, 9)),  # begins nowhere
    ]
    trace = read_trace(written(tmp_path, events))
    assert arrow_names(trace) == [("aten::addmm", "AddmmBackward0", "fwdbwd")]


@pytest.mark.parametrize("kind", ["ac2g", "async_cpu_to_gpu"])
def test_launches_by_flow_events_where_correlations_are_missing(tmp_path: Path, kind: str) -> None:
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 1, 3),
        flow("s", 8, kind, 1),
        event("kernel", "gemm", 5, 3, (0, 7)),
        flow("f", 8, kind, 5, (0, 7)),
    ]
    assert arrow_names(read_trace(written(tmp_path, events))) == [("cudaLaunchKernel", "gemm", "launch")]


def test_a_launch_is_drawn_once(tmp_path: Path) -> None:
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 1, 3, correlation=8),
        flow("s", 8, "ac2g", 1),
        event("kernel", "gemm", 5, 3, (0, 7), correlation=8),
        flow("f", 8, "ac2g", 5, (0, 7)),
    ]
    scattered = [events[1], events[3], events[2], events[0]]
    for order in (events, scattered):
        assert len(read_trace(written(tmp_path, order)).arrows) == 1


def test_a_graph_launch_starts_many_kernels_and_a_wait_is_tied_to_its_call(tmp_path: Path) -> None:
    events = [
        event("cuda_runtime", "cudaGraphLaunch", 1, 3, correlation=8),
        *(event("kernel", f"k{number}", 5 + 4 * number, 3, (0, 7), correlation=8) for number in range(3)),
        event("cuda_runtime", "cudaStreamSynchronize", 20, 3, correlation=9),
        event("cuda_sync", "Stream Sync", 21, 2, (0, 7), stream=4294967295, device=0, correlation=9),
    ]
    trace = read_trace(written(tmp_path, events))
    assert Counter(arrow.kind for arrow in trace.arrows) == {"launch": 3, "sync": 1}
    assert trace.rows[trace.events[-1].row].name == "-1"


def test_begin_and_end_events(tmp_path: Path) -> None:
    row: dict[str, Any] = {"pid": 1, "tid": 2}
    events = [
        {"ph": "B", "name": "outer", "cat": "cpu_op", "ts": 1, **row, "args": {"a": 1}},
        {"ph": "B", "name": "inner", "cat": "cpu_op", "ts": 2, **row},
        {"ph": "E", "ts": 3, **row},
        {"ph": "E", "ts": 9, **row, "args": {"b": 2}},
        {"ph": "E", "ts": 10, **row},
        {"ph": "B", "name": "open", "cat": "cpu_op", "ts": 11, **row},
    ]
    trace = read_trace(written(tmp_path, events))
    assert [(item.name, item.start_us, item.end_us) for item in trace.events] == [("outer", 0, 8), ("inner", 1, 2)]
    assert dict(trace.events[0].args) == {"a": 1, "b": 2}
    assert list(trace.notes) == ["1 events end and never begin; left out", "1 events begin and never end; left out"]


def test_the_profiler_itself_is_no_work(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::mm", 100, 2),
        event("Trace", "PyTorch Profiler (0)", 0, 500, ("Spans", "PyTorch Profiler")),
        {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", "tid": "Trace", "ts": 0},
    ]
    trace = read_trace(written(tmp_path, events))
    assert [(item.name, item.start_us) for item in trace.events] == [("aten::mm", 0.0)]
    assert trace.notes == ()


def test_compressed_and_plain_are_alike(tmp_path: Path) -> None:
    events = training_steps(2)
    plain = read_trace(write(tmp_path / "a.json", events))
    packed = read_trace(write(tmp_path / "b.json.gz", events))
    hidden = tmp_path / "c.json"  # compressed without saying so, in two members
    content = json.dumps({"traceEvents": events}).encode()
    hidden.write_bytes(gzip.compress(content[:500]) + gzip.compress(content[500:]) + b"\0\0")
    assert plain.events == packed.events == read_trace(hidden).events
    assert packed.notes == ()


def test_the_first_file_of_an_archive(tmp_path: Path) -> None:
    inside = write(tmp_path / "rank0.json", training_steps(40))
    notes = tmp_path / ("long" * 40)  # its name needs an entry of its own
    notes.mkdir()
    for form in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        packed = tmp_path / "trace.json.tar.gz"
        with tarfile.open(packed, "w:gz", format=form) as archive:
            archive.add(notes, "folder" if form == tarfile.USTAR_FORMAT else notes.name)
            archive.add(inside, inside.name)
            archive.add(inside, "second.json")
        assert read_trace(packed).events == read_trace(inside).events


@pytest.mark.parametrize(
    ("kinds", "backend"),
    [
        (("xpu_runtime", "kernel"), "xpu"),
        (("mtia_runtime", "mtia_ccp_events"), "mtia"),
        (("cuda_event", "cpu_op"), "cpu"),
    ],
)
def test_other_accelerators(tmp_path: Path, kinds: tuple[str, str], backend: str) -> None:
    events = [event(kind, kind, at, 1, (0, 3)) for at, kind in enumerate(kinds)]
    trace = read_trace(written(tmp_path, events))
    assert trace.backend == backend
    assert any(row.is_gpu for row in trace.rows)


EXPECTED = {
    "hta_alexnet.json.gz": ("cuda", 0, None, 867, {"launch": 98, "sync": 41}),
    "hta_cpu_only.json.gz": ("cpu", 34, 300, 15, {}),
    "hta_cupti.json.gz": ("cuda", 0, None, 2322, {}),
    "hta_event_sync_multi_stream.json.gz": ("cuda", 0, None, 56, {"launch": 6, "sync": 5}),
    "hta_mi250_minitoy_train.json.gz": ("rocm", None, None, 112, {"launch": 16, "fwdbwd": 4}),
    "hta_trace_diff_control.json.gz": ("cuda", 3, 8, 74936, {"launch": 9450}),
    "param_linear_kineto.json.gz": ("cuda", None, None, 61949, {"launch": 10356}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_public_traces_are_read_whole(name: str) -> None:
    trace = read_trace(public_trace(name))
    kinds = dict(Counter(arrow.kind for arrow in trace.arrows))
    assert (trace.backend, trace.rank, trace.world_size, len(trace.events), kinds) == EXPECTED[name]
    assert trace.notes == ()
    assert min(item.start_us for item in trace.events) == 0.0
    assert all(item.end_us >= item.start_us for item in trace.events)


def test_public_forward_and_backward_have_one_sequence_number() -> None:
    trace = read_trace(public_trace("hta_mi250_minitoy_train.json.gz"))
    pairs = [(trace.events[a.before], trace.events[a.after]) for a in trace.arrows if a.kind == "fwdbwd"]
    assert len(pairs) == 4
    assert all(before.sequence == after.sequence != UNKNOWN for before, after in pairs)
    assert all("Backward" in after.name for _, after in pairs)
