"""What a user names: files, folders, patterns; files that appear later; kinds of files beside each other."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.watch.events import Activity, DeviceSample, End, Event, Message, Start, Step
from predictor.watch.readers.table import EXAMPLES
from predictor.watch.source import Source, open_sources
from predictor.watch.sources import opening
from predictor.watch.sources.text_source import IDLE_S
from tests.unit.watch import event_bytes

LINE = "iter {0}: loss 1.0, time {1:.2f}ms, mfu 1.0%\n"


def log(*numbers: int, ms: float = 100.0) -> str:
    return "".join(LINE.format(number, ms) for number in numbers)


def poll(sources: list[Source]) -> list[Event]:
    return [event for source in sources for event in source.poll()]


def numbers(events: list[Event], rank: int | None = None) -> list[int]:
    return [event.number for event in events if isinstance(event, Step) and event.rank == rank]


def test_a_live_log_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    sources = open_sources([path])
    assert poll(sources) == []
    assert "waiting" in sources[0].description
    path.write_text(log(1) + LINE[:9], encoding="utf-8")
    sources[0]._look_at = 0.0  # type: ignore[attr-defined]
    assert numbers(poll(sources)) == [1]
    assert "nanoGPT" in sources[0].description
    with path.open("a", encoding="utf-8") as stream:
        stream.write(LINE.format(2, 50)[9:].replace("iter 2", "2"))
    poll(sources)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(log(3, 4))
    assert numbers(poll(sources)) == [3, 4]
    assert poll(sources) == []


def test_a_line_cut_in_a_number_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    example = (EXAMPLES / "megatron_lm.log").read_text(encoding="utf-8")
    path.write_text(example[: example.index("4019.2") + 2], encoding="utf-8")
    os.utime(path, times=(time.time() - 2 * IDLE_S,) * 2)
    for is_live in (True, False):
        assert numbers(poll(open_sources([path], is_live=is_live))) == [1010]


def test_a_step_whose_lines_do_not_come_is_reported_when_nothing_was_written_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("[step=1/9,epoch=1]\n    throughput/device/BPS=0.5\n    train/CE los", encoding="utf-8")
    live = open_sources([path])
    assert numbers(poll(live)) == []
    os.utime(path, times=(time.time() - 2 * IDLE_S,) * 2)
    assert numbers(poll(live)) == [1]
    with path.open("a", encoding="utf-8") as stream:
        stream.write("s=1.0\n[step=2/9,epoch=1]\n    train/CE loss=1.0\n")
    assert numbers(poll(live)) == []
    assert numbers(poll(open_sources([path], is_live=False))) == [1, 2]


def test_rotation_is_no_restart_and_a_truncated_log_that_goes_back_is(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(log(1, 2), encoding="utf-8")
    sources = open_sources([path])
    assert [type(event) for event in poll(sources)] == [Start, Step, Step]
    path.rename(tmp_path / "train.log.1")
    path.write_text(log(3, 4, 5), encoding="utf-8")
    assert [type(event) for event in poll(sources)] == [Step, Step, Step]
    path.write_text(log(2, 3), encoding="utf-8")
    assert [type(event) for event in poll(sources)] == [Start, Step, Step]


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(log(1, 2, 3).encode()))
    assert numbers(poll(open_sources([path], is_live=False))) == [1, 2, 3]


def test_bars_before_a_log_s_first_step_do_not_tell_its_format(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    bar = "  1%|#         | 1/100 [00:01<01:39,  1.00s/it]\r"
    path.write_text(bar * 30_000 + "\n" + log(1, 2, 3), encoding="utf-8")
    assert numbers(poll(open_sources([path], is_live=False))) == [1, 2, 3]
    path.write_text(bar + bar.replace(" 1/", " 2/") + "\n", encoding="utf-8")
    assert numbers(poll(open_sources([path], is_live=False))) == [1, 2]


def test_a_folder_s_jobs_follow_each_other(tmp_path: Path) -> None:
    for job, seen in ((9, (1, 2, 3)), (10, (2, 3, 4, 5))):
        path = tmp_path / "logs" / f"slurm-{job}.out"
        path.parent.mkdir(exist_ok=True)
        path.write_text(log(*seen), encoding="utf-8")
        os.utime(path, (1e9 + job, 1e9 + job))
    (tmp_path / "config.yaml").write_text(log(1), encoding="utf-8")
    (tmp_path / "notes").write_text("nothing\n", encoding="utf-8")
    events = poll(open_sources([tmp_path], is_live=False))
    assert numbers(events) == [1, 2, 3, 2, 3, 4, 5]
    assert sum(isinstance(event, Start) for event in events) == 2


def test_one_kind_of_files_states_the_steps(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log(1, 2), encoding="utf-8")
    tb = tmp_path / "tb"
    tb.mkdir()
    (tb / "events.out.tfevents.1772445600.node-1.10.0").write_bytes(
        event_bytes.version(1.0) + event_bytes.scalar("loss", 1.0, 1, 2.0)
    )
    (sources,) = [open_sources([tmp_path], is_live=False)]
    assert numbers(poll(sources)) == [1, 2]
    assert "tfevents" in sources[0].description
    assert "not read" in sources[0].description
    assert numbers(poll(open_sources([tb], is_live=False))) == [1]


def test_ranks_of_torchrun_s_logs_are_read_side_by_side(tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / "none_abc" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(log(1, 2, ms=100 + rank), encoding="utf-8")
        (folder / "stderr.log").write_text("NCCL WARN slow\n" if rank == 2 else "", encoding="utf-8")
    events = poll(open_sources([tmp_path], is_live=False))
    assert numbers(events) == [1, 2]
    assert numbers(events, 1) == numbers(events, 2) == [1, 2]
    assert [(event.kind, event.rank) for event in events if isinstance(event, Message)] == [("network", 2)]


def telemetry(rank: int, count: int) -> str:
    lines = [{"event": "start", "at": 1.0, "hosts": ["a", "b"], "world_size": 2, "tool": "t"}] if not rank else []
    lines += [
        {"event": "step", "number": n, "seconds": 0.1, "at": n + 0.1 * rank, "rank": rank, "parts": {"data": 0.01}}
        for n in range(1, count + 1)
    ]
    lines.append({"event": "activity", "part": "checkpoint", "step": count, "seconds": 2.0, "at": 99.0, "rank": rank})
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_telemetry_of_ranks_is_merged_in_time_and_logs_give_their_messages(tmp_path: Path) -> None:
    (tmp_path / "health").mkdir()
    for rank in range(2):
        (tmp_path / "health" / f"rank-{rank:05d}.jsonl").write_text(telemetry(rank, 3), encoding="utf-8")
    (tmp_path / "steps.jsonl").write_text('{"phase": "train", "step": 1, "step_time_s": 0.1}\n', encoding="utf-8")
    (tmp_path / "train.log").write_text("CUDA out of memory\n" + log(1, 2, 3), encoding="utf-8")
    events = poll(open_sources([tmp_path], is_live=False))
    order = [(event.number, event.rank) for event in events if isinstance(event, Step)]
    assert order == [(n, rank) for n in (1, 2, 3) for rank in (0, 1)]
    assert [event for event in events if isinstance(event, Start)] == [Start(1.0, None, ("a", "b"), 2, None, "t")]
    assert {type(event) for event in events} == {Start, Step, Activity, Message}


def test_many_files_are_read_in_small_blocks(tmp_path: Path) -> None:
    for rank in range(opening.MANY + 2):
        (tmp_path / f"rank-{rank:05d}.jsonl").write_text(telemetry(rank, 2), encoding="utf-8")
    (run,) = open_sources([tmp_path], is_live=False)
    assert {source.block for stream in run._streams.values() for source in stream} == {opening.SMALL_BLOCK}  # type: ignore[attr-defined]
    assert len([event for event in run.poll() if isinstance(event, Step)]) == 2 * (opening.MANY + 2)


def test_side_files_are_read_beside_a_log(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log(1, 2), encoding="utf-8")
    (tmp_path / "gpu.csv").write_text(
        "timestamp, index, power.draw [W], power.limit [W], memory.used [MiB], clocks_event_reasons.active, "
        "ecc.errors.uncorrected.volatile.total\n2026/03/02 10:00:00.500, 3, 690.10 W, 700.00 W, 1024 MiB, "
        "0x0000000000000024, 2\n",
        encoding="utf-8",
    )
    (tmp_path / "sacct.txt").write_text(
        "JobID|State|End\n7|CANCELLED by 1000|Unknown\n7.0|FAILED|x\n", encoding="utf-8"
    )
    (tmp_path / "ranks.csv").write_text("step,rank0_ms,rank1_ms\n1,100,150\n2,100,151\n", encoding="utf-8")
    events = poll(open_sources([tmp_path], is_live=False))
    assert numbers(events) == numbers(events, 0) == numbers(events, 1) == [1, 2]
    assert [event.seconds for event in events if isinstance(event, Step) and event.rank == 1] == [0.15, 0.151]
    (sample,) = [event for event in events if isinstance(event, DeviceSample)]
    assert (sample.device, sample.power_w, sample.power_limit_w, sample.ecc_errors) == ("3", 690.1, 700.0, 2)
    assert sample.memory_bytes == 2**30
    assert sample.throttle_reasons == {"sw_power_cap", "sw_thermal_slowdown"}
    assert [event for event in events if isinstance(event, End)] == [End("CANCELLED")]


def test_a_restart_has_the_nodes_of_its_job(tmp_path: Path) -> None:
    lines = [f"2026-03-02 1{hour}:30:00 {log(step).rstrip()}\n" for hour, step in ((0, 1), (0, 2), (2, 1), (2, 2))]
    lines.insert(2, "2026-03-02 12:29:00 Resuming training from out\n")
    (tmp_path / "train.log").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "sacct.txt").write_text(
        "JobID|State|Start|End|NodeList\n7|NODE_FAIL|2026-03-02T10:00:00|2026-03-02T11:00:00|n[1-2]\n"
        "7|RUNNING|2026-03-02T12:00:00|Unknown|n[1,3]\n",
        encoding="utf-8",
    )
    events = poll(open_sources([tmp_path], is_live=False))
    assert [event.hosts for event in events if isinstance(event, Start)] == [("n1", "n2"), ("n1", "n3")]
    assert [event.state for event in events if isinstance(event, End)] == ["NODE_FAIL"]


def test_a_list_of_nodes_is_of_all_starts(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log(1, 2), encoding="utf-8")
    (tmp_path / "hostfile").write_text("a slots=8\nb slots=8\n", encoding="utf-8")
    assert poll(open_sources([tmp_path], is_live=False))[0] == Start(hosts=("a", "b"), tool="nanoGPT")


def test_files_that_appear_later_are_read(tmp_path: Path) -> None:
    sources = open_sources([tmp_path])
    assert poll(sources) == []
    (tmp_path / "train.log").write_text(log(1, 2), encoding="utf-8")
    sources[0]._look_at = 0.0  # type: ignore[attr-defined]
    assert numbers(poll(sources)) == [1, 2]
    (tmp_path / "gpu.csv").write_text("index, temperature.gpu\n0, 71\n", encoding="utf-8")
    sources[0]._look_at = 0.0  # type: ignore[attr-defined]
    assert [event.temperature_c for event in poll(sources) if isinstance(event, DeviceSample)] == [71.0]


UNKNOWN = "".join(f"Epoch 3 batch {i} of 500: loss {1 / (i + 1):.3f} took {i % 7 + 1} s\n" for i in range(50))


def test_a_log_of_no_known_format_is_refused_with_what_it_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(UNKNOWN, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"train\.log is of no known log format; its lines look like « Epoch 3 batch 0"
    ) as caught:
        open_sources([path])
    assert "--pattern" in str(caught.value)
    assert "Megatron-LM" in str(caught.value)
    path.write_bytes(bytes(range(256)) * 100)
    with pytest.raises(ConfigError, match="binary data"):
        open_sources([path])
    path.write_text("Loading the model\n", encoding="utf-8")
    assert open_sources([path])  # it has just begun
    os.utime(path, (1e9, 1e9))
    with pytest.raises(ConfigError, match="has no line that states a step"):
        open_sources([path])


@pytest.mark.parametrize("row", ["2026/03/02 09:00:00.001, 3, 1980, 690.00", "3, 1980 MHz, 690.00 W"])
def test_readings_without_the_names_of_their_columns_are_refused_with_the_remedy(row: str, tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text(f"{row}\n" * 3, encoding="utf-8")
    with pytest.raises(ConfigError, match="leave out noheader"):
        open_sources([path])


def test_a_pattern_reads_any_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(UNKNOWN, encoding="utf-8")
    pattern = r"batch (?P<step>\d+) of (?P<target>\d+): loss (?P<loss>\S+) took (?P<seconds>\d+) s"
    events = poll(open_sources([path], pattern, is_live=False))
    assert numbers(events) == list(range(50))
    assert isinstance(events[0], Start)
    assert events[0].target_step == 500
    assert [event.seconds for event in events if isinstance(event, Step)][:3] == [1.0, 2.0, 3.0]


def test_a_pattern_reads_times_and_ranks(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("t=1000.5 r=0 s=1\nt=1000.7 r=1 s=1\nt=1001.5 r=0 s=2\n", encoding="utf-8")
    steps = [
        event
        for event in poll(open_sources([path], r"t=(?P<time>\S+) r=(?P<rank>\d) s=(?P<step>\d+)"))
        if isinstance(event, Step)
    ]
    assert [(step.number, step.rank, step.at) for step in steps] == [
        (1, None, 1000.5),
        (1, 1, 1000.7),
        (2, None, 1001.5),
        (2, 0, 1001.5),
    ]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"step (?P<step>\d+", "no regular expression"),
        (r"step (\d+)", "has no group step"),
        (r"(?P<step>\d+) (?P<secnds>\d+)", "Did you mean seconds"),
    ],
)
def test_a_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_sources([tmp_path], pattern)


def test_a_trainer_s_state_gives_losses_and_the_mean_of_a_run_that_ended(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-20" / "trainer_state.json"
    path.parent.mkdir()
    history: list[dict[str, float]] = [
        {"loss": 2.0, "epoch": 0.1, "step": 10},
        {"eval_loss": 2.1, "eval_runtime": 3.0, "step": 10},
    ]
    path.write_text(json.dumps({"max_steps": 20, "log_history": history}), encoding="utf-8")
    sources = open_sources([tmp_path])
    assert poll(sources) == [Start(target_step=20), Step(10, loss=2.0), Activity("evaluation", 10, 3.0)]
    history += [{"loss": 1.9, "step": 20}, {"train_runtime": 40.0, "train_loss": 1.95, "step": 20}]
    path.write_text(json.dumps({"max_steps": 20, "log_history": history}), encoding="utf-8")
    assert poll(sources) == [Step(20, 2.0, 20), End("completed")]
    path.write_text('{"half', encoding="utf-8")
    assert poll(sources) == []


@pytest.mark.parametrize("name", ["megatron_lm.log", "torchtitan.log", "hugging_face_trainer.log"])
def test_examples_have_no_steps_twice(name: str) -> None:
    own = numbers(poll(open_sources([EXAMPLES / name], is_live=False)))
    assert own == sorted(set(own))
