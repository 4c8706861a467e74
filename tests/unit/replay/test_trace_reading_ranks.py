"""The traces of a job's ranks are found, ordered and checked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.replay.files.reading import read_traces, trace_files
from predictor.replay.files.record_model import RecordError
from tests.kineto_made import write_job
from tests.traces_made import make_job
from tests.unit.kineto_traces import training_steps, write

EVENTS = training_steps(1)


def rank_file(path: Path, rank: int | None = None, world_size: int | None = None) -> Path:
    job = {"rank": rank, "world_size": world_size} if rank is not None else {}
    return write(path, EVENTS, distributedInfo=job)


def test_a_folder_is_read_in_the_order_of_ranks(tmp_path: Path) -> None:
    for number, rank in enumerate((2, 0, 1)):
        rank_file(tmp_path / f"host{number}.pt.trace.json.gz", rank, 3)
    (tmp_path / ".hidden.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "config.json").write_text("{}")
    traces = read_traces([tmp_path])
    assert [trace.rank for trace in traces] == [0, 1, 2]
    assert list(traces[0].notes) == ["config.json is no trace; passed over"]


def test_a_folder_of_folders_and_patterns(tmp_path: Path) -> None:
    for rank in (0, 1, 10):
        rank_file(tmp_path / f"rank_{rank}" / "trace.json")
    assert [path.parent.name for path in trace_files(tmp_path)] == ["rank_0", "rank_1", "rank_10"]
    traces = read_traces([str(tmp_path / "rank_?" / "*.json"), tmp_path / "rank_0" / "trace.json"])
    assert [trace.rank for trace in traces] == [0, 1]


def test_unknown_ranks_are_taken_in_the_order_of_names(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        rank_file(tmp_path / f"worker_{number}.json")
    traces = read_traces([tmp_path])
    assert [(trace.rank, trace.path.name) for trace in traces] == [
        (0, "worker_2.json"),
        (1, "worker_9.json"),
        (2, "worker_10.json"),
    ]
    assert list(traces[1].notes) == ["it does not say its rank; taken as rank 1"]


def test_unknown_ranks_fill_what_is_free(tmp_path: Path) -> None:
    paths = [rank_file(tmp_path / "a.json"), rank_file(tmp_path / "b.json", 0), rank_file(tmp_path / "c.json")]
    assert [trace.path.name for trace in read_traces(paths)] == ["b.json", "a.json", "c.json"]


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [rank_file(tmp_path / "a.json", 1), rank_file(tmp_path / "b.json", 1)]
    with pytest.raises(RecordError, match=r"a.json and .*b.json are both of rank 1; give one trace of each rank"):
        read_traces(paths)


@pytest.mark.parametrize(
    ("ranks", "world_size", "missing"),
    [((0, 2), None, "rank 1 is missing"), ((0, 1), 4, "ranks 2, 3 are missing"), ((0, 3), 20, "… 19 are missing")],
)
def test_missing_ranks_are_refused(
    tmp_path: Path, ranks: tuple[int, ...], world_size: int | None, missing: str
) -> None:
    paths = [rank_file(tmp_path / f"{rank}.json", rank, world_size) for rank in ranks]
    with pytest.raises(RecordError, match=missing):
        read_traces(paths)
    assert [trace.rank for trace in read_traces(paths, partial=True)] == list(ranks)
    assert [trace.rank for trace in read_traces(paths[1:])] == [ranks[1]]


def test_jobs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    paths = [rank_file(tmp_path / "a.json", 0, 2), rank_file(tmp_path / "b.json", 1, 4)]
    with pytest.raises(RecordError, match=r"a.json is of a job of 2 ranks and .*b.json of 4; give those of one job"):
        read_traces(paths)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no trace is given"):
        read_traces([])
    with pytest.raises(RecordError, match=r"has no trace in it \(.json or .json.gz\)"):
        read_traces([tmp_path])
    with pytest.raises(RecordError, match="no file matches"):
        read_traces([str(tmp_path / "*.json")])
    with pytest.raises(RecordError, match=r"gone.json cannot be read"):
        read_traces([tmp_path / "gone.json"])
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(RecordError, match=r"config.json is no trace: it has no list traceEvents"):
            read_traces([path])


def test_ranks_that_do_not_say_the_size_of_their_job_are_one_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_job([[100.0, 60.0], [70.0, 90.0]], [30.0, 45.0], launch_us=9.0, sizes=[1 << 20, 1 << 21])
    for number, path in enumerate(write_job(tmp_path / "said", made)):
        content = json.loads(gzip.decompress(path.read_bytes()))
        del content["distributedInfo"]
        for item in content["traceEvents"]:
            for key in ("Process Group Ranks", "Group size"):
                item.get("args", {}).pop(key, None)
        (tmp_path / f"s_{number}.json").write_text(json.dumps(content))
    traces = read_traces([str(tmp_path / "s_*.json")])
    assert [trace.world_size for trace in traces] == [2, 2]
    assert [list(trace.notes) for trace in traces] == [
        ["it does not say its rank; taken as rank 0", "it does not say how many ranks the job has; taken as 2"],
        ["it does not say its rank; taken as rank 1"],
    ]
    assert main(["replay", str(tmp_path / "s_*.json"), "--set", "ranks=8"]) == 0
    told = capsys.readouterr().out
    assert "2 of 2 ranks" in told
    assert "ranks=8: 4 collectives" in told


def test_a_rank_beyond_the_traces_counts(tmp_path: Path) -> None:
    (trace,) = read_traces([rank_file(tmp_path / "rank-3.json")])
    assert (trace.rank, trace.world_size) == (3, 4)
    (alone,) = read_traces([rank_file(tmp_path / "alone.json")])
    assert (alone.world_size, list(alone.notes)) == (None, ["it does not say its rank; taken as rank 0"])
