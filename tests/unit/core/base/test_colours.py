"""Colours: on a terminal only, around the words of the plain answer and never instead of them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.core.base.colour import CODES, RESET, coloured

CODE = re.compile(r"\x1b\[[\d;]*m")
COMMANDS = {
    "predict": ["predict", "-e", "llemma_7b_4_2_2_P"],
    "unfit": ["predict", "-e", "llemma_7b_4_2_2_P", "--set", "micro_batch_size=64"],
    "search": ["search", "--model", "llama3-8b", "--system", "H100", "--gpus", "8", "--global-batch-size", "16"],
    "whatif": ["whatif", "-e", "llemma_7b_4_2_2_P", "--set", "memory_gib=20"],
    "check": ["check", "estimate_train_time/data/examples/llemma_7b_4_2_2_P.yml", "--max-step-s", "3"],
}
EXPECTED = {
    "predict": {"good", "heading", "dim"},
    "unfit": {"bad", "heading", "dim"},
    "search": {"dim", "heading"},
    "whatif": {"dim", "heading"},
    "check": {"bad", "good"},
}
ROOT = Path(__file__).resolve().parents[4]


def run(arguments: list[str], on_terminal: bool, **environment: str) -> str:
    """Return what the program prints, on a terminal or into a pipe."""
    command = [sys.executable, "-m", "predictor", *arguments]
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    env |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "24", **environment}
    if not on_terminal:
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False).stdout
    main, other = pty.openpty()
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=other, stderr=subprocess.DEVNULL)
    os.close(other)
    output = b""
    while True:
        try:
            read = os.read(main, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not read:
            break
        output += read
    process.wait()
    os.close(main)
    return output.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_shows_the_same_words_in_colours(name: str) -> None:
    shown, piped = run(COMMANDS[name], on_terminal=True), run(COMMANDS[name], on_terminal=False)
    assert CODE.sub("", shown) == piped
    assert "\x1b" not in piped
    used = {kind for kind, code in CODES.items() if code in shown}
    assert used >= EXPECTED[name]
    assert shown.count(RESET) == sum(shown.count(code) for code in CODES.values())


@pytest.mark.parametrize(
    ("options", "environment"),
    [(["--no-color"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"}), (["--json"], {})],
)
def test_a_terminal_shows_none_where_nobody_wants_them(options: list[str], environment: dict[str, str]) -> None:
    assert "\x1b" not in run([*COMMANDS["predict"], *options], on_terminal=True, **environment)


def test_an_empty_no_color_means_nothing() -> None:
    assert "\x1b" in run(COMMANDS["predict"], on_terminal=True, NO_COLOR="")


COLOURED = [
    ("Step time  9.782 s   extrapolated", "heading", "9.782 s"),
    ("Step time  9.782 s   90 % interval 8.57 s –\n  11.22 s  measured", "dim", "90 % interval 8.57 s –\n  11.22 s"),
    ("Memory     52.9 of 79.6 GiB: fits (weights 8.5)", "good", "fits"),
    ("Memory     115.2 of 79.6 GiB on stage 0: DOES NOT FIT (weights", "bad", "DOES NOT FIT"),
    ("Memory     82.2 of 79.6 GiB: MAY NOT FIT (weights", "doubtful", "MAY NOT FIT"),
    ("1  3.317 s  2.727 s – 4.212 s  analytic", "dim", "2.727 s – 4.212 s"),
    ("      FAIL  max_step_s", "bad", "      FAIL"),
    ("Health    Slower than it should be after step 400", "bad", "Slower than it should be"),
    ("fits                 yes                     NO", "bad", "NO"),
]


@pytest.mark.parametrize(("plain", "kind", "words"), COLOURED)
def test_what_is_coloured(plain: str, kind: str, words: str) -> None:
    assert f"{CODES[kind]}{words}{RESET}" in coloured(plain)
    assert CODE.sub("", coloured(plain)) == plain
