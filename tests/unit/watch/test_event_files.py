"""TensorBoard's event files and W&B's offline runs, against the libraries' own writers where they are installed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from predictor.watch.events import Activity, End, Event, Start, Step
from predictor.watch.readers.tracker import StepTracker
from predictor.watch.source import open_sources
from predictor.watch.sources.event_files import EventFile, WandbLog
from predictor.watch.sources.text_source import Reader
from tests.unit.watch import event_bytes


def read(reader: Reader, data: bytes) -> list[Event]:
    return [*reader.feed(data), *reader.finish()]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_scalars_of_a_step_are_its_values(as_tensor: bool) -> None:
    scalars = [
        ("iteration-time", 0.5, 10, 100.0),
        ("lm loss", 2.5, 10, 100.1),
        ("lm loss vs samples", 2.5, 640, 100.1),
        ("forward-compute-time", 0.125, 10, 100.2),
        ("iteration-time", 0.25, 20, 105.0),
        ("eval/loss", 2.4, 20, 107.0),
        ("Train/Samples/train_loss", 2.0, 640, 107.0),
    ]
    data = event_bytes.version(90.0) + b"".join(event_bytes.scalar(*each, as_tensor=as_tensor) for each in scalars)
    assert read(EventFile(StepTracker(), host="node-1"), data) == [
        Start(90.0, hosts=("node-1",)),
        Step(10, 0.5, at=100.0, loss=2.5, parts={"forward": 0.125}),
        Step(20, 0.25, steps=10, at=105.0),
        Activity("evaluation", 20, at=107.0),
    ]


def test_a_record_that_is_too_large_ends_the_file() -> None:
    assert read(EventFile(StepTracker()), b"\xff" * 100 + event_bytes.scalar("loss", 1.0, 1, 1.0)) == []


def test_event_files_of_a_folder_are_processes(tmp_path: Path) -> None:
    for began, steps in ((100, (1, 2, 3)), (200, (3, 4))):
        path = tmp_path / f"events.out.tfevents.{1772445600 + began}.node-{began}.11.0"
        path.write_bytes(
            event_bytes.version(float(began))
            + b"".join(event_bytes.scalar("train/loss", 1.0, step, began + step) for step in steps)
        )
    events = [event for source in open_sources([tmp_path], is_live=False) for event in source.poll()]
    assert [event.hosts for event in events if isinstance(event, Start)] == [("node-100",), ("node-200",)]
    assert [event.number for event in events if isinstance(event, Step)] == [1, 2, 3, 3, 4]


def test_rows_of_wandb_cut_over_blocks() -> None:
    rows = [
        {"train/loss": 2.0 - 0.1 * n, "train/global_step": 10 * n, "_timestamp": 100.0 + n, "table": "x" * 40_000}
        for n in range(1, 4)
    ]
    records = [event_bytes.run("node-1", 50), *(event_bytes.history(row, n) for n, row in enumerate(rows))]
    records += [
        event_bytes.history({"eval/loss": 2.0, "eval/runtime": 4.0, "train/global_step": 30}, 3),
        event_bytes.ended(0),
    ]
    start, *steps, evaluation, end = read(WandbLog(StepTracker()), event_bytes.wandb_file(records))
    assert start == Start(50.0, hosts=("node-1",))
    assert [(step.number, step.at, step.loss) for step in steps if isinstance(step, Step)] == [
        (10, 101.0, 1.9),
        (20, 102.0, 1.8),
        (30, 103.0, pytest.approx(1.7)),
    ]
    assert evaluation == Activity("evaluation", 30, 4.0)
    assert end == End("completed")


def test_a_damaged_record_of_wandb_is_left_out() -> None:
    data = bytearray(event_bytes.wandb_file([event_bytes.history({"loss": 1.0}, n) for n in (1, 2, 3)]))
    data[data.index(b"loss", data.index(b"loss") + 1)] ^= 1
    events = read(WandbLog(StepTracker()), bytes(data))
    assert [event.number for event in events if isinstance(event, Step)] == [1, 3]


def test_tensorboard_s_own_writer(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="no TensorBoard to compare with")
    began = time.time()
    with tensorboard.SummaryWriter(tmp_path) as writer:
        for step in range(1, 6):
            writer.add_scalar("train/loss", 1.0 / step, step)
            writer.add_scalar("train/step_time_s", 0.25 * step, step)
            writer.add_scalar("val/loss", 2.0, step)
            writer.add_text("note", "of no use", step)
    events = [event for source in open_sources([tmp_path], is_live=False) for event in source.poll()]
    steps = [event for event in events if isinstance(event, Step)]
    assert [(step.number, step.seconds) for step in steps] == [(step, 0.25 * step) for step in range(1, 6)]
    assert [step.loss for step in steps] == pytest.approx([1.0 / step for step in range(1, 6)])
    assert all(step.at is not None and began - 1 < step.at < time.time() + 1 for step in steps)
