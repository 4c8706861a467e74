"""Rows of users' own runs and of Megatron-LM's tests: configurations that rows bring, publications, kinds of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from predictor.evidence.published.row import UnexpressedError
from predictor.formats import read_any
from tests.unit.evidence.test_published_tables import ARGUMENTS, OF_FAMILY, step_of


def test_arguments_of_megatrons_tests_are_read_as_a_file_of_them_is(tmp_path: Path) -> None:
    file = tmp_path / "arguments.yaml"
    file.write_text(yaml.safe_dump({name: given == "true" or given for name, given in ARGUMENTS.items()}))
    step = step_of("mcore_golden")
    read = read_any(file, num_gpus=16)
    assert read.content["model"].items() <= step.config["model"].items()
    assert read.content["training"].items() <= step.config["training"].items()
    assert step.config["parallelism"]["data_parallel_size"] == read.content["parallelism"]["data_parallel_size"] == 8
    assert step.peak_counts == "allocated"
    assert step.groups == ("Megatron-LM's tests, small steps", "Megatron-LM's tests, small steps, H100")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "arguments of the run are not stated"),
        ({**ARGUMENTS, "--optimizer": "muon"}, "arguments are refused: arguments: --optimizer is muon"),
        ({key: value for key, value in ARGUMENTS.items() if key != "--merge-file"}, "leave open model.vocab_size"),
    ],
)
def test_arguments_that_are_not_read_are_counted_with_the_readers_reason(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UnexpressedError, match=reason):
        step_of("mcore_golden", arguments_json=json.dumps(given))


def test_a_row_that_brings_its_configuration_is_taken_at_its_word() -> None:
    step = step_of("fresh_trainer", framework="HF Trainer + none")
    assert step.config["training"]["framework"] == "pytorch"
    assert step.config["model"]["hidden_size"] == 4096
    assert step_of("fresh_trainer", framework="DeepSpeed 0.14").config["training"]["framework"] == "deepspeed"
    assert step.groups == ("trainer, LoRA, bf16",)
    with pytest.raises(UnexpressedError, match="holds no configuration"):
        step_of("fresh_trainer", expressed_as="")


def test_a_row_that_its_table_calls_unfit_is_left_out() -> None:
    with pytest.raises(UnexpressedError, match="not to average it"):
        step_of("internevo", unfit_for_summary="one reading")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("github:pytorch/torchtitan@abc123:benchmarks/asyncTP.md#L3", "pytorch/torchtitan"),
        ("github:NVIDIA/dgxc-benchmarking@abc (v25.08.02):qwen3/README.md", "NVIDIA/dgxc-benchmarking"),
        ("github:NVIDIA/dgxc-benchmarking (v25.08.02):qwen3/README.md", "NVIDIA/dgxc-benchmarking"),
        (
            "github:NVIDIA/Megatron-LM@d98e:tests/functional_tests/test_cases/x.json",
            "NVIDIA/Megatron-LM, functional tests",
        ),
        ("github:NVIDIA/NeMo@1e10:docs/source/performance/performance_summary.md", "NeMo, performance summary"),
        ("https://docs.nvidia.com/nemo-framework/user-guide/24.09/x.html", "NeMo, performance summary"),
        ("https://gist.github.com/someone/d4cd", "gist.github.com/someone/d4cd"),
        ("a paper, table 5", "a paper, table 5"),
        ("", "internevo"),
    ],
)
def test_rows_of_one_publication_have_one_source(source: str, name: str) -> None:
    assert step_of("internevo", source=source).source == name


def test_training_runs_are_told_from_benchmarks() -> None:
    ordinary = {group for group in OF_FAMILY if step_of(group).ordinary}
    assert ordinary == {"gpumodeling25", "bloom_prequel", "mcore_golden", "fresh_trainer"}
