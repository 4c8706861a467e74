"""Each log format: told, and read as its tool means it. The examples are written after the tool's source."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pytest

from predictor.watch.events import Activity, End, Event, Message, Start, Step
from predictor.watch.readers.log_format import LogFormat
from predictor.watch.readers.log_reader import LogReader
from predictor.watch.readers.table import EXAMPLES, TABLE, Teller

BY_NAME = {known.name: known for known in TABLE}


def read(known: LogFormat, *pieces: bytes) -> list[Event]:
    reader = LogReader(known)
    return [*(event for piece in pieces for event in reader.feed(piece)), *reader.finish()]


@cache
def example(name: str) -> list[Event]:
    known = BY_NAME[name]
    return read(known, (EXAMPLES / known.example).read_bytes())


def steps(events: Iterable[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def test_every_example_is_of_a_format() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == {known.example for known in TABLE}


@pytest.mark.parametrize("known", TABLE, ids=lambda known: known.name)
def test_the_example_is_told_and_read(known: LogFormat) -> None:
    data = (EXAMPLES / known.example).read_bytes()
    assert Teller().feed(data) is known
    events = read(known, data)
    found = steps(events)
    assert len(found) > 1
    assert [step.number for step in found if step.rank is None] == sorted({step.number for step in found})
    assert isinstance(events[[type(event) for event in events].index(Start)], Start)
    assert known.versions
    assert known.produced


# Seconds of the second step of each example, as its lines say.
SECONDS = {
    "Megatron-Bridge log": 7.181,
    "Megatron-DeepSpeed log": 8.2541,
    "GPT-NeoX log": 2.1713,
    "nanotron log": 3.21,
    "NeMo log": 7.652,
    "Megatron-LM log": 4.0192,
    "torchtune log": 1.994,
    "NeMo progress bar": 7.65,
    "Lightning progress bar": 2.1,
    "torchtitan log": None,
    "Composer console log": 4.0,
    "OLMo console log": 4.0,
    "litgpt log": 0.40233,
    "modded-nanogpt log": 0.087,
    "nanoGPT log": 0.2511,
    "nanochat log": 1.0084,
    "llm.c log": 1.21054,
    "MaxText log": 0.612,
    "llm_trainer log": None,
    "DeepSpeed log": 256 / 127,
    "tqdm progress bar": 1.0,
    "Hugging Face Trainer log": 1.405,
}


@pytest.mark.parametrize("name", BY_NAME)
def test_the_second_step_takes_what_its_line_says(name: str) -> None:
    assert steps(example(name))[1].seconds == (None if SECONDS[name] is None else pytest.approx(SECONDS[name]))


def test_megatron_s_lines_are_steps_starts_timers_and_pauses() -> None:
    start, first, second, skipped, evaluated, saved, timed, end = example("Megatron-LM log")
    assert start == Start(resumed_step=1000, world_size=64, target_step=20000, tool="Megatron-LM")
    assert isinstance(first, Step)
    assert (first.number, first.steps, first.samples, first.loss) == (1010, 10, 256, 3.104221)
    assert first.flops_per_second == pytest.approx(398.2e12)
    assert isinstance(second, Step)
    assert second.at is not None
    assert first.at is not None
    assert second.at - first.at == pytest.approx(40.191792)
    assert second.memory_bytes == 65112 * 2**20
    assert second.parts == pytest.approx(
        {"forward": 1.24011, "backward": 2.53, "data": 0.00602, "communication": 0.06102, "optimizer": 0.03302}
    )
    assert isinstance(skipped, Message)
    assert skipped.kind == "skipped"
    assert evaluated == Activity("evaluation", 1020, 8121.02 * 1e-3)
    assert saved == Activity("checkpoint", 1020)
    assert timed == Activity("checkpoint", 1020, 21034.1 * 1e-3)
    assert isinstance(end, End)
    assert end.state == "completed"


def test_torchtitan_s_colours_ranks_and_pauses() -> None:
    events = example("torchtitan log")
    own = [step for step in steps(events) if step.rank is None]
    assert [(step.number, step.steps) for step in own] == [(1, 1), (10, 9), (20, 10)]
    assert own[1].memory_bytes == pytest.approx(55.10 * 2**30)
    assert own[1].memory_limit_bytes == pytest.approx(55.10 / 0.6955 * 2**30)
    assert {step.rank for step in steps(events)} == {None, 0, 1}
    assert [(event.part, event.seconds) for event in events if isinstance(event, Activity)] == [
        ("garbage_collection", 0.05),
        ("checkpoint", 3.45),
        ("evaluation", None),
    ]
    assert all(event.in_step for event in events if isinstance(event, Activity))
    assert [event.kind for event in events if isinstance(event, Message)] == ["allocator_retry"]


def test_the_step_at_which_torchtitan_goes_on() -> None:
    log = b"Training starts at step 501\nstep: 510 loss: 2.0 memory: 1.00GiB(1.00%) tps: 5 mfu: 1%\n"
    start, step = read(BY_NAME["torchtitan log"], log)
    assert start == Start(resumed_step=500, tool="torchtitan")
    assert isinstance(step, Step)
    assert step.steps == 10


def test_deepspeed_s_breakdown_is_of_the_whole_step() -> None:
    assert steps(example("DeepSpeed log"))[1].parts == pytest.approx(
        {"forward": 0.4814, "backward": 1.2418, "communication": 0.04, "optimizer": 0.042}
    )


def test_a_trainer_without_bars_is_numbered_by_its_epoch() -> None:
    log = b"  Num Epochs = 2\n  Total optimization steps = 500\n" + b"".join(
        b"{'loss': '%.2f', 'grad_norm': '1.0', 'epoch': '%.2f'}\n" % (3 - epoch, epoch) for epoch in (0.04, 0.08)
    )
    assert [(step.number, step.steps, step.loss) for step in steps(read(BY_NAME["Hugging Face Trainer log"], log))] == [
        (10, 1, 2.96),
        (20, 10, 2.92),
    ]


def test_olmo_without_numbers_of_a_step_gives_none() -> None:
    log = b"[step=1/???,epoch=1]\n    throughput/device/BPS=0.5\n"
    assert steps(read(BY_NAME["OLMo console log"], log)) == [Step(1, 2.0)]


def test_a_run_that_goes_back_began_again() -> None:
    log = b"".join(b"iter %d: loss 1.0, time 100.00ms, mfu 1.0%%\n" % number for number in (0, 10, 20, 30, 10, 20))
    starts = [event for event in read(BY_NAME["nanoGPT log"], log) if isinstance(event, Start)]
    assert len(starts) == 2


def test_a_banner_between_equal_steps_is_a_start() -> None:
    line = b"iter 10: loss 1.0, time 100.00ms, mfu 1.0%\n"
    events = read(BY_NAME["nanoGPT log"], line + b"Resuming training from out\n" + line)
    assert [type(event) for event in events] == [Start, Step, Start, Step]


def test_ranks_without_a_prefix_are_read_once() -> None:
    lines = [
        b"step: %d loss: 2.0 memory: 1.00GiB(1.00%%) tps: 5 tflops: 1.0 mfu: 1%%\n" % n for n in (1, 1, 2, 1, 2, 3)
    ]
    assert [step.number for step in steps(read(BY_NAME["torchtitan log"], b"".join(lines)))] == [1, 2, 3]


@pytest.mark.parametrize(
    "prefix", [b"15: ", b"[default7]:", b"[rank3]: ", b"2026-03-02T10:00:00Z ", b"\x1b[32mINFO\x1b[0m "]
)
def test_prefixes_of_launchers_change_no_step(prefix: bytes) -> None:
    known = BY_NAME["nanoGPT log"]
    data = (EXAMPLES / known.example).read_bytes()
    prefixed = b"".join(prefix + line for line in data.splitlines(keepends=True))
    assert [(step.number, step.seconds, step.rank) for step in steps(read(known, prefixed))] == [
        (step.number, step.seconds, None) for step in steps(example(known.name))
    ]


def test_times_with_a_zone_are_read_in_it() -> None:
    log = b"2026-03-02T10:00:00.5%s iter 1: loss 1.0, time 100.00ms, mfu 1.0%%\n"
    at = [steps(read(BY_NAME["nanoGPT log"], log % zone))[0].at for zone in (b"Z", b"+00:00", b"+02:00")]
    assert at[0] == at[1] == 1772445600.5
    assert at[2] == at[0] - 7200


def test_utf_16_is_read() -> None:
    known = BY_NAME["nanoGPT log"]
    text = (EXAMPLES / known.example).read_text(encoding="utf-8")
    for encoding in ("utf-16", "utf-16-be"):
        assert read(known, text.encode(encoding)) == example(known.name)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out_of_memory"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.", "out_of_memory"),
        ("W0302 torch._dynamo hit config.recompile_limit (8)", "recompiled"),
        ("node-1:10:20 [0] NCCL WARN Call to ibv_poll_cq failed", "network"),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=10)", "network"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "hardware"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "hardware"),
        ("Traceback (most recent call last):", "error"),
    ],
)
def test_messages_that_bear_on_speed(line: str, kind: str) -> None:
    (message,) = read(BY_NAME["nanoGPT log"], f"{line}\n".encode())
    assert isinstance(message, Message)
    assert (message.kind, message.text) == (kind, line)


@pytest.mark.parametrize(
    ("reason", "state"), [(" DUE TO TIME LIMIT", "TIMEOUT"), (" DUE TO NODE FAILURE", "NODE_FAIL"), ("", "CANCELLED")]
)
def test_slurm_says_how_a_job_ended(reason: str, state: str) -> None:
    line = f"slurmstepd: error: *** JOB 12 ON node-1 CANCELLED AT 2026-03-02T10:00:00{reason} ***\n"
    (end,) = read(BY_NAME["nanoGPT log"], line.encode())
    assert isinstance(end, End)
    assert end.state == state


def test_a_loss_that_is_no_number_is_a_message() -> None:
    _, step, message = read(BY_NAME["nanoGPT log"], b"iter 1: loss nan, time 100.00ms, mfu 1.0%\n")
    assert isinstance(step, Step)
    assert step.loss is None
    assert isinstance(message, Message)
    assert message.kind == "not_finite"
