"""Whatever stands under a key or behind ``--set``: an answer, or one line on stderr that names the place."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.__main__ import main
from predictor.core.base.read_yaml import read_mapping
from predictor.core.base.yaml_depth import DEEPEST
from predictor.core.costs.hardware_change import CHANGES
from predictor.core.schema.own_system import OwnGpu, OwnSystem
from predictor.core.schema.settings import _paths

SMALL = {
    "system": "H100",
    "model": {
        "num_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "sequence_length": 512,
        "vocab_size": 32000,
    },
    "parallelism": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2},
    "training": {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16"},
}
NUMBERS = [0, 1, -1, 3, 1.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 10**30, 10**400, 2**63]
WORDS = ["", "null", "x2", "x0", "x1e300", "1:30", "010", "0x10", "50GB", "1,000", "[", "*a", "!!python/none", "\t"]
VALUES: st.SearchStrategy[object] = st.one_of(
    st.sampled_from([*NUMBERS, *WORDS, None, True, [], {}]),
    st.floats(),
    st.integers(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
)
KEYS = sorted(set(_paths().values()))
OWN = [("gpu", key) for key in OwnGpu.model_fields] + [(key,) for key in OwnSystem.model_fields if key != "gpu"]


def placed(content: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """Return nested mappings with one more value."""
    inner = content.get(path[0])
    below = inner if isinstance(inner, dict) else {}
    return {**content, path[0]: value if len(path) == 1 else placed(below, path[1:], value)}


def answered(*arguments: str) -> None:
    """Run a command: an answer of numbers on stdout, or nothing there and one line on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*arguments, "--json"])
    if code == 0:
        assert json.loads(out.getvalue())
        return
    lines = err.getvalue().splitlines()
    assert code == 2
    assert not out.getvalue()
    assert len(lines) == 1
    assert len(lines[0]) < 5000


@settings(max_examples=150)
@given(path=st.sampled_from(KEYS), value=VALUES)
def test_any_value_of_any_key(tmp_path_factory: pytest.TempPathFactory, path: tuple[str, ...], value: object) -> None:
    file = tmp_path_factory.mktemp("hostile") / "c.yml"
    file.write_text(yaml.safe_dump(placed(SMALL, path, value)), encoding="utf-8")
    answered("predict", str(file))


@settings(max_examples=100)
@given(key=st.sampled_from([*CHANGES, *map(".".join, KEYS)]), value=VALUES)
def test_any_change(tmp_path_factory: pytest.TempPathFactory, key: str, value: object) -> None:
    file = tmp_path_factory.mktemp("hostile") / "c.yml"
    file.write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    answered("predict", str(file), "--set", f"{key}={value}")


@settings(max_examples=100)
@given(path=st.sampled_from(OWN), value=VALUES)
def test_any_number_of_a_system_of_ones_own(
    tmp_path_factory: pytest.TempPathFactory, path: tuple[str, ...], value: object
) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "own.yml").write_text(yaml.safe_dump(placed({"like": "H100"}, path, value)), encoding="utf-8")
    (folder / "c.yml").write_text(yaml.safe_dump({**SMALL, "system": "own.yml"}), encoding="utf-8")
    answered("predict", str(folder / "c.yml"))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
@pytest.mark.parametrize("closed", [False, True])
def test_nesting_that_would_overflow_the_parser(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opening: str, closed: bool
) -> None:
    """libyaml's binding recurses in C: 100,000 brackets end a Python process without a word."""
    end = {"[": "]", "{a: ": "}"}.get(opening, "") if closed else ""
    file = tmp_path / "deep.yml"
    file.write_text("a:\n  " + opening * 100_000 + "1" + end * 100_000, encoding="utf-8")
    assert main([str(file)]) == 2
    assert f"nested deeper than {DEEPEST} levels" in capsys.readouterr().err
    small = tmp_path / "small.yml"
    small.write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    assert main([str(small), "--set", f"num_layers={opening * 100_000}"]) == 2
    assert main(["predict", "--model", str(file), "--system", "H100", "--gpus", "8"]) == 2


LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


@settings(max_examples=60)
@given(key=st.sampled_from(list(LLAMA)), value=VALUES)
def test_any_value_in_another_tools_file(tmp_path_factory: pytest.TempPathFactory, key: str, value: object) -> None:
    file = tmp_path_factory.mktemp("hostile") / "config.json"
    with contextlib.suppress(ValueError):  # a whole number of more digits than Python prints
        file.write_text(json.dumps({**LLAMA, key: value}), encoding="utf-8")
        options = ["--gpus", "1", "--micro-batch-size", "1", "--global-batch-size", "1"]
        answered("predict", "--model", str(file), "--system", "H100", *options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", "[" * 100_000),
        ("deep.toml", "a = " + "[" * 5000),
        ("deep.py", "import megatron.bridge\nx = " + "(" * 5000 + ")" * 5000),
        ("grows.sh", "A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 12 + "torchrun pretrain_gpt.py --num-layers $A"),
        ("circle.sh", "A=$B\nB=$A\ntorchrun pretrain_gpt.py --num-layers $A"),
    ],
)
def test_files_that_would_fill_stack_or_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert main(["predict", "--model", str(file), "--system", "H100", "--gpus", "8", "--global-batch-size", "8"]) == 2
    assert capsys.readouterr().err.startswith("estimate-train-time: ")


@pytest.mark.parametrize(("written", "value"), [("1:30", "1:30"), ("010", "010"), ("1e3", 1000.0), ("0x10", 16)])
def test_numbers_are_those_that_people_mean(tmp_path: Path, written: str, value: object) -> None:
    file = tmp_path / "a.yml"
    file.write_text(f"a: {written}\n", encoding="utf-8")
    assert read_mapping(file) == {"a": value}
