"""Somebody who waits for a search hears how far it is on a terminal, and ends it by Ctrl-C with the best so far."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from predictor.__main__ import main
from predictor.layout_search.interface import search
from predictor.layout_search.timer import Timer
from predictor.layout_search.watch import INTERRUPTED

SEARCH = ("search", "--model", "llama3-8b", "--system", "H100", "--gpus", "64", "--global-batch-size", "256")
TERMINAL = """
import os, sys
from predictor.__main__ import main
from predictor.layout_search import watch
watch.FIRST_S = watch.EVERY_S = 0.0
sys.exit(main(sys.argv[1:]))
"""


def interrupting(method: Callable[..., float], at: int, times: int = 1) -> Callable[..., float]:
    """Return a method of a timer that this process interrupts at its so-many-th call."""
    calls = 0

    def called(self: Timer, plan: Any) -> float:
        nonlocal calls
        calls += 1
        for _ in range(times if calls == at else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return method(self, plan)

    return called


@pytest.mark.parametrize(("method", "at"), [("step_us", 1), ("step_us", 3), ("bound_us", 1), ("floor_us", 1)])
def test_ctrl_c_answers_with_the_best_so_far(
    method: str, at: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search("llama3-8b", 64, system="H100", global_batch_size=256, top=30)
    monkeypatch.setattr(Timer, method, interrupting(getattr(Timer, method), at))
    assert main([*SEARCH, "--json", "--top", "30"]) == 130
    out, errors = capsys.readouterr()
    assert not errors
    told = json.loads(out)
    assert told["notes"][0] == INTERRUPTED
    steps = [layout["time_us"] for layout in told["layouts"]]
    assert 1 <= len(steps) < len(whole.layouts)
    assert steps == sorted(steps)
    assert steps[0] >= whole.layouts[0].step.us * (1.0 - 1e-9)
    if method == "step_us":
        assert steps[0] == pytest.approx(whole.layouts[0].step.us, rel=0.05)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_the_search_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timer, "bound_us", interrupting(Timer.bound_us, 1, times=2))
    with pytest.raises(KeyboardInterrupt):
        main(list(SEARCH))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_search_from_python_is_interrupted_like_any_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timer, "bound_us", interrupting(Timer.bound_us, 1))
    with pytest.raises(KeyboardInterrupt):
        search("llama3-8b", 64, system="H100", global_batch_size=256)


def _read(terminal: int) -> Iterator[str]:
    """Return what is written to a terminal until its last writer is gone."""
    with suppress(OSError):
        while text := os.read(terminal, 4096).decode():
            yield text


def test_progress_is_for_terminals(root: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", TERMINAL, *SEARCH]
    shown = tmp_path / "shown"
    with shown.open("w") as file, subprocess.Popen(command, cwd=root, stdout=file, stderr=theirs) as process:
        os.close(theirs)
        said = "".join(_read(ours))
    os.close(ours)
    assert process.returncode == 0
    assert "ways to split the GPUs" in said
    assert "replayed; the fastest takes" in said
    assert said.endswith("\r\x1b[K")
    quiet = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert (quiet.stderr, quiet.stdout) == ("", shown.read_text())
