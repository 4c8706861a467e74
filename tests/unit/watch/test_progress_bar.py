"""Progress bars: times of single steps from a rate that tqdm smooths."""

from __future__ import annotations

import io
import itertools
import random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.watch.events import Event, Start, Step
from predictor.watch.readers.hugging_face import LIGHTNING, TQDM
from predictor.watch.readers.log_reader import LogReader
from predictor.watch.readers.progress_bar import SMOOTHING, SmoothedRate


def smoothed(times: list[float]) -> list[float]:
    """Return the seconds of a step that a bar shows after each step, as tqdm's EMA has them."""
    shown, mean = [], 0.0
    for calls, seconds in enumerate(times, start=1):
        mean = SMOOTHING * seconds + (1 - SMOOTHING) * mean
        shown.append(mean / (1 - (1 - SMOOTHING) ** calls))
    return shown


@given(st.lists(st.floats(0.5, 100), min_size=1, max_size=50))
def test_a_smoothed_rate_gives_back_each_step(times: list[float]) -> None:
    rate = SmoothedRate()
    found = [rate.seconds(n, shown) for n, shown in enumerate(smoothed(times), start=1)]
    assert found == pytest.approx(times, rel=1e-6)


def test_a_bar_set_forward_has_no_time_at_first() -> None:
    rate = SmoothedRate()
    assert rate.seconds(501, 0.004) is None
    assert rate.seconds(501, 0.004) is None
    assert rate.seconds(502, None) is None


def read(log: bytes) -> list[Event]:
    known = LIGHTNING if b"Epoch 0" in log else TQDM
    reader = LogReader(known)
    return [*reader.feed(log), *reader.finish()]


def test_bars_of_other_work_are_no_steps() -> None:
    log = (
        b"  10%|#         | 1/10 [00:01<00:09,  1.00s/it]\r"
        b"  50%|#####     | 2/4 [00:00<00:00,  9.00it/s]\r"  # an evaluation: of another length
        b"  20%|##        | 2/10 [00:02<00:08,  1.00s/it]\n"
    )
    assert [event.number for event in read(log) if isinstance(event, Step)] == [1, 2]


def bar(n: int, total: int, words: str = "") -> bytes:
    return f"{words}{100 * n // total:3d}%|###   | {n}/{total} [00:{n:02d}<00:10,  1.00s/it]\r".encode()


def test_bars_of_preparations_are_no_steps() -> None:
    log = bar(3, 3, "Loading checkpoint shards: ") + bar(9, 9, "Map: ") + bar(1, 20) + bar(2, 20)
    start, *steps = read(log + b"\n")
    assert start == Start(target_step=20)
    assert [event.number for event in steps if isinstance(event, Step)] == [1, 2]


def test_a_bar_for_each_epoch_goes_on_counting() -> None:
    log = b"".join(bar(n, 4, f"Training, epoch {epoch}: ") for epoch in range(3) for n in range(1, 5))
    events = read(log.replace(b"Training", b"Train") + b"\n")
    assert [event.number for event in events if isinstance(event, Step)] == list(range(1, 13))
    assert [event.target_step for event in events if isinstance(event, Start)] == [None]


def test_lightning_s_bar_is_read_by_its_clock_over_epochs() -> None:
    lines = [
        b"Epoch %d: %3d%%|#    | %d/200 [%02d:%02d<00:10, 1.00it/s, v_num=0]\r" % (epoch, n // 2, n, n // 60, n % 60)
        for epoch in range(2)
        for n in range(1, 201)
    ]
    steps = [event for event in read(b"".join(lines) + b"\n") if isinstance(event, Step)]
    assert [step.number for step in steps[:3]] == [20, 40, 60]
    assert steps[-1].number == 400
    assert {step.seconds for step in steps} == {1.0}


def test_tqdm_s_own_bar() -> None:
    tqdm = pytest.importorskip("tqdm", reason="no tqdm to compare with")
    chance = random.Random(1)
    times = [chance.uniform(1.0, 1.2) + (4.0 if step % 10 == 9 else 0.0) for step in range(40)]
    clock = itertools.accumulate([0.0, *times])
    now = [next(clock)]
    output = io.StringIO()
    with patch.object(tqdm.tqdm, "_time", staticmethod(lambda: now[0]), create=True):
        bar = tqdm.tqdm(total=len(times), file=output, ncols=100, disable=False)
        bar._time = lambda: now[0]
        bar.start_t = bar.last_print_t = now[0]
        for at in clock:
            now[0] = at
            bar.update(1)
        bar.close()
    steps = {event.number: event.seconds for event in read(output.getvalue().encode()) if isinstance(event, Step)}
    assert list(steps) == list(range(1, 41))
    # Two decimals are shown: (0.005 + 0.7 * 0.005) / 0.3 of error at most.
    assert [steps[step] for step in range(1, 41)] == pytest.approx(times, abs=0.03)
