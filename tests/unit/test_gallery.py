"""The examples gallery prints what it shows, and its notebook runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gallery import (
    FILES,
    PAGE,
    PAGES,
    ROOT,
    GalleryError,
    blocks,
    folder,
    rewritten,
    run,
    same_number,
    words_and_numbers,
)

TEXT = PAGE.read_text(encoding="utf-8")
SHOWN = blocks(TEXT)
EXIT_CODES = {"# exit code 2": {2}, "# exit code 3": {3}, "--require-fit": {0, 3}, "check --budget": {3}}
NOTEBOOK: dict[str, Any] = json.loads((FILES / "notebook.ipynb").read_text(encoding="utf-8"))
CELLS = """
import json, sys
cells = [cell for cell in json.load(open(sys.argv[1]))["cells"] if cell["cell_type"] == "code"]
space = {"__name__": "__main__"}
for cell in cells:
    print("== cell")
    exec(compile("".join(cell["source"]), cell["id"], "exec"), space)
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_prints_what_the_page_shows(page: Path) -> None:
    with folder():
        for command, shown in (pair for block in blocks(page.read_text(encoding="utf-8")) for pair in block):
            ran = run(command)
            expected = next((codes for words, codes in EXIT_CODES.items() if words in command), {0})
            assert ran.code in expected, command
            words, numbers = words_and_numbers(ran.output)
            shown_words, shown_numbers = words_and_numbers(shown)
            remedy = f"{command}: run python -m tests.gallery where the change is intended"
            assert words == shown_words, remedy
            assert [pair for pair in zip(numbers, shown_numbers, strict=True) if not same_number(*pair)] == [], remedy


def test_the_commands_of_the_readme_run_as_written() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Your own run")[2].partition("\n## ")[0]
    commands = [command.strip() for command in re.findall(r"python -m predictor ([^`\n#]+)", section)]
    assert len(commands) >= 12
    with folder():
        os.chdir("../..")  # from the gallery's folder to that of the README
        for command in commands:
            if not command.startswith(("serve", "hf:")):  # answers until it is stopped; needs the network
                assert run(f"python -m predictor {command}").code == (3 if command.startswith("check") else 0), command


def test_the_gallery_answers_a_dozen_questions_and_names_no_machine() -> None:
    assert TEXT.count("\n## ") >= 12
    assert sum(map(len, SHOWN)) >= 15
    assert all(output for block in SHOWN for _, output in block)
    assert str(ROOT) not in TEXT
    assert "/tmp" not in TEXT


def test_a_changed_output_shows() -> None:
    page = "```console\n$ cat budget.yml\nchecks: []\n```\n"
    ((_, shown),) = blocks(page)[0]
    again = rewritten(page)
    ((_, true),) = blocks(again)[0]
    assert words_and_numbers(shown) != words_and_numbers(true)
    assert true == (FILES / "budget.yml").read_text(encoding="utf-8").rstrip()
    assert rewritten(again) == again


@pytest.mark.parametrize("command", ["rm -rf .", "python -m predictor list-systems | tail -1", "python -c 1"])
def test_the_gallery_runs_nothing_else(command: str) -> None:
    with pytest.raises(GalleryError), folder():
        run(command)


def test_the_notebook_is_one_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in NOTEBOOK["cells"]:
        assert isinstance(cell["source"], list)
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_every_cell_of_the_notebook_runs_and_says_something() -> None:
    command = [sys.executable, "-c", CELLS, str(FILES / "notebook.ipynb")]
    done = subprocess.run(command, cwd=FILES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, *printed = done.stdout.split("== cell\n")
    assert len(printed) == sum(cell["cell_type"] == "code" for cell in NOTEBOOK["cells"]) >= 7
    assert all(printed)
