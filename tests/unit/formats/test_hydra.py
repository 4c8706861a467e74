"""Configurations that Hydra composes, and command lines that override them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.formats.hydra import composed, invocations, overridden

PROGRAM = re.compile(r"train\.py$")


def test_files_of_a_defaults_list_are_laid_in_order(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "base.yaml").write_text("a: 1\nb: {c: 1, d: 2}\n", encoding="utf-8")
    (tmp_path / "model/big.yaml").write_text("layers: 8\n", encoding="utf-8")
    (tmp_path / "model/flat.yaml").write_text("# @package _global_\ntop: 1\n", encoding="utf-8")
    path = tmp_path / "run.yaml"
    path.write_text(
        "defaults: [base, {model: big}, {model@other: big}, {model: flat}, {optional gone: x}, {gone: y}]\nb: {c: 3}\n",
        encoding="utf-8",
    )
    found = composed(path)
    expected = {"a": 1, "b": {"c": 3, "d": 2}, "model": {"layers": 8}, "other": {"layers": 8}, "top": 1}
    assert (found.content, found.absent) == (expected, ["gone/y.yaml"])
    path.write_text("defaults: [base, _self_, model: big]\nmodel: {layers: 2}\n", encoding="utf-8")
    assert composed(path).content["model"] == {"layers": 8}


def test_files_that_name_each_other_end(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("defaults: a.yaml\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="expected no circle"):
        composed(path)


def test_keys_are_set_added_and_taken_out() -> None:
    words = ["a.b=2", "+a.c=[1,2]", "++d=true", "~e", "f='x y'"]
    assert overridden({"a": {"b": 1}, "e": 5}, words) == {
        "a": {"b": 2, "c": [1, 2]},
        "d": True,
        "e": None,
        "f": "x y",
    }


@pytest.mark.parametrize(
    "text",
    [
        "N=4\ntorchrun --nproc_per_node=8 --nnodes $N -m x train.py --config-name=run a.b=1 \\\n  +c=${N}\n",
        "cat > job.sh <<EOF\ntorchrun --nproc_per_node=8 --nnodes 4 train.py --config-name run a.b=1 +c=4\nEOF\n",
        "job=$(cat <<- EOM\n  torchrun --nproc-per-node 8 --nnodes=4 train.py --config-name=run a.b=1 +c=4\nEOM\n)\n",
        "X='torchrun --nproc_per_node=8 --nnodes=4 train.py --config-name=run a.b=1 +c=4'\nsrun bash -c \"$X\"\n",
    ],
)
def test_start_of_a_program_is_found_wherever_a_script_has_it(text: str) -> None:
    (found,) = invocations(text, PROGRAM)
    assert (found.program, found.overrides, found.flags) == ("train.py", ["a.b=1", "+c=4"], {"config-name": "run"})
    assert (found.launcher["nproc-per-node"], found.launcher["nnodes"]) == ("8", "4")
