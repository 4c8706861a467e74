"""``python -m predictor mixed``: ranks on different devices, from trace files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.replay.whatif.mixed_question import MixedQuestion, answer, gpu_of
from tests.kineto_made import write_job, write_rank
from tests.traces_made import MadeJob, make_job

SLOW, FAST = [600.0, 600.0], [200.0, 200.0]
TRANSFERS = [30.0, 45.0]


@pytest.fixture
def traces(tmp_path: Path) -> tuple[str, str]:
    """Return the folders of two jobs, each of two ranks of one device."""
    for name, computing in (("slow", SLOW), ("fast", FAST)):
        write_job(tmp_path / name, make_job([computing] * 2, TRANSFERS, launch_us=9.0))
    return str(tmp_path / "slow"), str(tmp_path / "fast")


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["mixed", *arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_ranks_of_two_devices_are_replayed_together(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = asked(capsys, *traces)
    truth = make_job([SLOW, FAST], TRANSFERS, launch_us=9.0)
    assert [rank["step_us"] for rank in document["ranks"]] == pytest.approx(truth.steps_us, abs=0.05)
    assert [wait["for_rank"] for wait in document["waits"]] == [0]
    assert document["balance"] is None
    assert any("different jobs" in note for note in document["notes"])


def test_the_batch_is_split_for_any_number_of_ranks(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = asked(capsys, *traces, "--ranks", "1", "2", "--samples", "8", "8", "--global-batch", "28")
    assert [rank["asked"] for rank in document["ranks"]] == [traces[0], traces[1], traces[1]]
    split = document["balance"]
    assert split["split"] == [4, 12, 12]
    assert split["step_us"] < split["even_step_us"]
    assert main(["mixed", *traces, "--samples", "8", "8"]) == 0
    text = capsys.readouterr().out
    assert "Split of 16 samples" in text
    assert "Rank 1 waits" in text


def test_traces_at_two_batch_sizes_need_no_assumption(tmp_path: Path) -> None:
    for name, us in (("a8", 450.0), ("a16", 850.0), ("b8", 250.0), ("b16", 450.0)):  # 50 µs whatever the batch
        write_job(tmp_path / name, make_job([[us, us]] * 2, TRANSFERS, launch_us=9.0))
    device, other = (str(tmp_path / name) for name in ("a8", "b8"))
    second = [str(tmp_path / name) for name in ("a16", "b16")]
    answered = answer(
        MixedQuestion([device, other], samples=[8, 8], second=second, second_samples=[16, 16], global_batch=32)
    )
    assert answered.balance is not None
    assert [time.per_sample_us for time in answered.balance.times] == pytest.approx([100.0, 50.0], abs=0.01)
    assert {time.source for time in answered.balance.times} == {"measured at two batch sizes"}
    assert answered.balance.split == (11, 21)


def test_a_trace_moves_to_another_gpu(traces: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    trace = traces[1]
    document = asked(capsys, trace, f"{trace}@Vista")
    assert [rank["device"] for rank in document["ranks"]] == ["NVIDIA A100-SXM4-80GB", "Vista"]
    here, there = (rank["busy_us"] for rank in document["ranks"])
    assert there < here
    assert document["low_us"] <= document["step_us"] <= document["high_us"]
    assert any("Kernel time moved" in note for note in document["notes"])


def test_single_traces_of_one_job_are_joined_as_it_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_job([SLOW, FAST], TRANSFERS, launch_us=9.0)
    paths = [str(path) for path in write_job(tmp_path, made)]
    document = asked(capsys, *paths)
    assert [rank["step_us"] for rank in document["ranks"]] == pytest.approx(made.steps_us, abs=0.05)


def test_a_folder_of_eight_ranks_is_a_job_of_eight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_job([[200.0 + 50.0 * rank, 300.0] for rank in range(8)], TRANSFERS, launch_us=9.0)
    write_job(tmp_path, made)
    for asked_for in (str(tmp_path), str(tmp_path / "rank-*")):
        document = asked(capsys, asked_for)
        assert [rank["rank"] for rank in document["ranks"]] == list(range(8))
        assert [rank["step_us"] for rank in document["ranks"]] == pytest.approx(made.steps_us, abs=0.05)
        assert {wait["rank"] for wait in document["waits"]} == set(range(7))
    assert main(["mixed", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "predicted; 8 ranks" in text
    assert "No rank waits" not in text
    assert len(asked(capsys, str(tmp_path), "--ranks", "3")["ranks"]) == 3
    assert len(asked(capsys, f"{tmp_path}@Vista")["ranks"]) == 8


def test_ranks_that_take_no_part_are_told(traces: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    notes = asked(capsys, *traces)["notes"]
    assert f"{traces[0]} has traces of 2 ranks, of which 1 takes part; --ranks takes more" in notes
    assert not any("takes part" in note for note in asked(capsys, *traces, "--ranks", "1", "1")["notes"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ranks": [1]}, "--ranks is 1; give 1 or more for each of 2 traces"),
        ({"samples": [8, 0]}, "--samples is 8 0"),
        ({"global_batch": 8}, "--samples is missing"),
        ({"samples": [8, 8], "second": ["x"], "second_samples": [4]}, "--second"),
        ({"samples": [8, 8], "global_batch": 1}, "the global batch is 1 for 2 ranks"),
    ],
)
def test_what_cannot_be_answered_is_one_line(traces: tuple[str, str], change: dict[str, Any], told: str) -> None:
    if "second" in change:
        change = {**change, "second": [traces[0]]}
    with pytest.raises(ConfigError, match=told) as error:
        answer(MixedQuestion(traces, **change))
    assert "\n" not in str(error.value)


def test_an_unknown_gpu_is_told(traces: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mixed", f"{traces[0]}@Abacus"]) == 2
    assert "Abacus is not a published system, nor a GPU with a known data sheet" in capsys.readouterr().err


def test_a_file_with_the_sign_in_its_name_is_a_trace(tmp_path: Path) -> None:
    path = write_rank(tmp_path / "run@night.json.gz", make_job([FAST], TRANSFERS).locals[0])
    assert gpu_of(str(path)) == (str(path), "")
    assert gpu_of(f"{path}@Vista") == (str(path), "Vista")


def test_single_traces_of_one_job_are_joined_though_their_clocks_are_far_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_job([SLOW, FAST], TRANSFERS, launch_us=9.0, offsets_us=[0.0, 5e6])
    document = asked(capsys, *(str(path) for path in write_job(tmp_path, made)))
    assert [rank["step_us"] for rank in document["ranks"]] == pytest.approx(made.steps_us, abs=0.05)
    assert not any("different jobs" in note for note in document["notes"])


def test_single_traces_that_no_offset_fits_are_of_two_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for number, computing in enumerate((SLOW, FAST)):
        job = make_job([computing] * 2, TRANSFERS, launch_us=9.0, starts_us=[5e6 * number] * 2)
        paths.append(str(write_job(tmp_path / str(number), job)[number]))
    document = asked(capsys, *paths)
    assert any("different jobs" in note for note in document["notes"])


def test_traces_at_two_batch_sizes_are_of_two_jobs(tmp_path: Path) -> None:
    made = [make_job([[us, us]] * 2, [us / 10, us / 9], launch_us=9.0) for us in (450.0, 850.0)]
    path, other = (str(write_job(tmp_path / str(number), job)[number]) for number, job in enumerate(made))
    question = MixedQuestion([path], samples=[8], second=[other], second_samples=[16], global_batch=8)
    balance = answer(question).balance
    assert balance is not None
    assert [balance.times[0].at(size) for size in (8, 16)] == pytest.approx([job.steps_us[0] for job in made], abs=0.01)


def test_single_traces_of_one_job_are_taken_in_the_same_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = two_steps(tmp_path, make_job([SLOW, FAST], TRANSFERS, launch_us=9.0))
    content = json.loads(Path(paths[1]).read_text())
    cut = [item for item in content["traceEvents"] if item["ts"] < LATER_US or item["cat"] == "user_annotation"]
    Path(paths[1]).write_text(json.dumps({**content, "traceEvents": cut}))
    document = asked(capsys, *paths)
    whole = make_job([SLOW, FAST], TRANSFERS, launch_us=9.0)
    assert [rank["step_us"] for rank in document["ranks"]] == pytest.approx(whole.steps_us, abs=0.05)
    assert not any("different jobs" in note for note in document["notes"])


LATER_US = 2000.0


def two_steps(folder: Path, made: MadeJob) -> list[str]:
    """Write the step of every rank twice, the second one later."""
    paths = []
    for path in write_job(folder, made):
        content = json.loads(gzip.decompress(path.read_bytes()))
        events = content["traceEvents"]
        for item in [*events]:
            args = {
                key: value + 10**6 if key == "correlation" else value for key, value in item.get("args", {}).items()
            }
            name = item["name"].replace("ProfilerStep#1", "ProfilerStep#2")
            events.append({**item, "name": name, "ts": item["ts"] + LATER_US, "args": args})
        paths.append(str(path.with_suffix("").with_suffix(".json")))
        Path(paths[-1]).write_text(json.dumps(content))
    return paths


def test_a_trace_moved_to_its_own_gpu_is_as_measured(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = asked(capsys, f"{traces[1]}@A100-SXM4-80GB")
    assert document["low_us"] == document["step_us"] == document["high_us"]
    told = "A100-SXM4-80GB is the GPU that was traced (NVIDIA A100-SXM4-80GB): all stays as measured."
    assert told in document["notes"]
