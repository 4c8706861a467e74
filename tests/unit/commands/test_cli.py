"""The command line: exit codes, and one clear line for whatever a user can get wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from predictor import __version__
from predictor.__main__ import main
from tests.unit.examples import EXAMPLE, full_form, short_form, write

Capture = pytest.CaptureFixture[str]


def refused(path: Path | str, capsys: Capture) -> str:
    """Return the line that a prediction is refused with."""
    assert main(["predict", "--config", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "", "bad input never prints a number"
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("estimate-train-time: ")
    return captured.err


BAD_SHORT_FORMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": ({"encoder": 32}, ["encoder is not a known key", "Did you mean encoders?"]),
    "missing key": ({"comm_bucket": None}, ["comm_bucket is missing"]),
    "list of eight": (
        {"training_config": [4, 2, 2, 4, 32, 4096, 4096, 8]},
        ["training_config has 8 values; expected 9: pp, mp, dp, b, h, l, dim, steps_per_update, gpus_per_node"],
    ),
    "no list": ({"training_config": 4}, ["training_config has 4; expected 9"]),
    "zero": ({"b": 0}, ["micro_batch_size (b) is 0", "greater than 0"]),
    "negative": ({"mp": -2}, ["tensor_parallel_size (mp) is -2"]),
    "fraction": ({"l": 4096.5}, ["sequence_length (l) is 4096.5"]),
    "boolean": ({"dp": True}, ["data_parallel_size (dp) is True", "whole number"]),
    "text": ({"dim": "4096"}, ["hidden_size (dim) is '4096'", "whole number"]),
    "list for a number": ({"dim": [4096]}, ["hidden_size (dim) is a list"]),
    "infinite": ({"dim": float("inf")}, ["hidden_size (dim) is inf"]),
    "no number": ({"dim": float("nan")}, ["hidden_size (dim) is nan"]),
    "absurdly large": ({"dim": 4096 * 10**9}, ["hidden_size (dim) is 4096000000000", "taken for a slip"]),
    "absurdly many": ({"steps_per_update": 10**9}, ["num_micro_batches (steps_per_update)", "taken for a slip"]),
    "absurd product": ({"dp": 1_000_000, "pp": 32}, ["64,000,000 GPUs", "taken for a slip"]),
    "absurd bucket": ({"comm_bucket": 10**30}, ["gradient_bucket_elements (comm_bucket)", "taken for a slip"]),
    "heads and width": (
        {"h": 33},
        ["num_attention_heads (h) is 33; it must divide hidden_size (dim), 4096. Try"],
    ),
    "ranks and heads": (
        {"mp": 5},
        ["tensor_parallel_size (mp) is 5; it must divide num_attention_heads (h), 32. Try 1, 2, 4, 8, 16 or 32."],
    ),
    "stages and layers": ({"pp": 33}, ["pipeline_parallel_size (pp) is 33", "32 layers (encoders)"]),
    "no layers": ({"encoders": 0}, ["num_layers (encoders) is 0"]),
    "negative synchronisations": ({"fwd_syncs": -1}, ["forward_all_reduces (fwd_syncs) is -1"]),
    "more GPUs than a node has": ({"gpus_per_node": 8}, ["gpus_per_node is 8; Perlmutter has 4"]),
    "unpublished GPU": (
        {"gpu_name": "NVIDIAB200"},
        ["gpu_name is NVIDIAB200", "Perlmutter (NVIDIAA100-SXM4-80GB), "],
    ),
    "another system's GPU": ({"gpu_name": "NVIDIAGH200120GB"}, ["Perlmutter was measured on NVIDIAA100-SXM4-80GB"]),
    "unpublished cluster": (
        {"operator_data_folder": "./regressors/Perlmuter/operator"},
        [
            "./regressors/Perlmuter/operator is not a published system",
            "Perlmutter, RTX_4090",
        ],
    ),
    "two clusters": (
        {"nccl_data_folder": "./regressors/Vista/nccl"},
        ["operator_data_folder is of Perlmutter and nccl_data_folder of Vista"],
    ),
    "folders exchanged": ({"operator_data_folder": "./regressors/Perlmutter/nccl"}, ["expected the operator folder"]),
    "no folder": ({"nccl_data_folder": 5}, ["nccl_data_folder is 5"]),
    "unknown operator": ({"function_list": ["flash_attn"]}, ["'flash_attn'", "Did you mean flash_atten?"]),
    "unknown operator of a layer": ({"encoder_function_list": ["linear5"]}, ["encoder_function_list names 'linear5'"]),
    "nested operator": ({"function_list": [["gelu"]]}, ["function_list names ['gelu']"]),
    "no operators": ({"encoder_function_list": []}, ["encoder_function_list is []"]),
    "an operator that no layer runs": ({"encoder_function_list": ["optimizer"]}, ["not an operator of a layer"]),
    "operators of the last stage": (
        {"encoder_function_list": ["linear_final", "parallel_cross_entropy_128"]},
        ["encoder_function_list names linear_final, not an operator of a layer", "Known: RMSlayernorm"],
    ),
    "operator of the first stage": (
        {"encoder_function_list": ["gelu", "embedding"]},
        ["encoder_function_list names embedding, not an operator of a layer"],
    ),
    "unknown norm": ({"layernorm_name": "gelu"}, ["layernorm_name is 'gelu'; expected RMSlayernorm or layernorm"]),
    "no precision": ({"precision": "fp7"}, ["precision is 'fp7'"]),
    "whole steps in fp8": (
        {"precision": "fp8"},
        ["precision is 'fp8': whole steps in fp8 are not predicted, single operators"],
    ),
    "split": ({"layers_per_stage": [16, 16]}, ["layers_per_stage is [16, 16]; it needs 4 positive numbers"]),
}


@pytest.mark.parametrize("case", BAD_SHORT_FORMS)
def test_short_form_that_cannot_be_predicted(case: str, tmp_path: Path, capsys: Capture) -> None:
    changes, expected = BAD_SHORT_FORMS[case]
    line = refused(write(short_form(**changes), tmp_path / "config.yml"), capsys)
    for part in expected:
        assert part in line, line


BAD_FULL_FORMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": ({"model": {"num_layer": 8}}, ["model.num_layer is not a known key", "Did you mean num_layers?"]),
    "unknown framework": (
        {"training": {"framework": "torch-titan"}},
        [
            "training.framework is 'torch-titan': it is not known. Did you mean torchtitan?",
            "Known: deepspeed, fms-fsdp",
        ],
    ),
    "framework by its title": ({"training": {"framework": "GPT NeoX"}}, ["Did you mean gpt-neox?", "or leave it out"]),
    "unknown section": ({"modle": {}}, ["modle is not a known key", "Did you mean model?"]),
    "no section": ({"training": 5}, ["training is 5; it needs keys: micro_batch_size, num_micro_batches"]),
    "number for a section": ({"model": 3}, ["model is 3; it needs keys: num_layers, hidden_size"]),
    "list for a section": ({"model": [3]}, ["model is a list; it needs keys: num_layers"]),
    "empty section": ({"parallelism": None}, ["parallelism is null; it needs keys: tensor_parallel_size"]),
    "keys for a number": ({"model": {"num_layers": {"a": 1}}}, ["model.num_layers (encoders) is a mapping"]),
    "no system": ({"system": ""}, ["system is ''", "Perlmutter, "]),
    "blank system": ({"system": "  "}, ["system is ' '", "Perlmutter, RTX_4090"]),
    "layer of nothing": ({"model": {"layer_operators": []}}, ["model.layer_operators is []", "flash_attention"]),
    "layer without a layer's operators": (
        {"model": {"layer_operators": ["lm_head", "cross_entropy"]}},
        ["model.layer_operators names 'lm_head', not an operator of a layer"],
    ),
    "operator that no layer runs": (
        {"model": {"layer_operators": ["gelu", "embedding"]}},
        ["model.layer_operators names 'embedding'"],
    ),
    "both batch sizes": ({"training": {"global_batch_size": 8}}, ["exactly one of"]),
    "unpublished cluster": ({"system": "Frontier"}, ["Frontier is not a published system", "Perlmutter", "Vista"]),
    "unpublished GPU": ({"gpu": "H100"}, ["gpu is H100", "Vista (NVIDIAGH200120GB)"]),
    "misspelt switch": ({"model": {"attention": "flsh"}}, ["model.attention is 'flsh'", "'flash'"]),
    "text for a switch": ({"model": {"biases": "yes"}}, ["model.biases is 'yes'"]),
    "certain dropout": ({"model": {"hidden_dropout": 1.0}}, ["model.hidden_dropout is 1.0"]),
    "split method": (
        {"parallelism": {"layers_per_stage": "even"}},
        ["layers_per_stage is 'even'", "uniform or gpt_neox"],
    ),
    "split of zero": ({"parallelism": {"layers_per_stage": [8, 0]}}, ["layers_per_stage", "is 0"]),
    "zero": ({"parallelism": {"tensor_parallel_size": 0}}, ["parallelism.tensor_parallel_size (mp) is 0"]),
    "ffn": (
        {"model": {"ffn_hidden_size": 1001}, "parallelism": {"tensor_parallel_size": 2}},
        ["ffn_hidden_size, 1001"],
    ),
}


@pytest.mark.parametrize("case", BAD_FULL_FORMS)
def test_full_form_that_cannot_be_predicted(case: str, tmp_path: Path, capsys: Capture) -> None:
    changes, expected = BAD_FULL_FORMS[case]
    content = full_form()
    for key, value in changes.items():
        content[key] = {**content[key], **value} if key in content and isinstance(value, dict) else value
    line = refused(write(content, tmp_path / "config.yml"), capsys)
    for part in expected:
        assert part in line, line


def test_missing_key_of_the_full_form(tmp_path: Path, capsys: Capture) -> None:
    content = full_form()
    del content["model"]["hidden_size"]
    assert "model.hidden_size (dim) is missing" in refused(write(content, tmp_path / "config.yml"), capsys)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("# nothing but a comment\n", "is empty"),
        ("training_config: [4, 2\nencoders: 32\n", "line 2, column"),
        ("a: 1\na: 2\n", "a is given twice"),
        ("- 1\n- 2\n", "holds a list"),
        ("just words", "holds text"),
        ("3", "holds a number"),
        ("2.5", "holds a number"),
        ("true", "holds true or false"),
        ("2024-01-01", "holds a single value"),
        ("a: \x00", "not YAML"),
        ("a: 2024-99-99", "cannot be read"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
    ],
)
def test_file_that_is_no_configuration(text: str, expected: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "config.yml"
    path.write_text(text, encoding="utf-8")
    line = refused(path, capsys)
    assert expected in line
    assert "config.yml" in line


def test_file_that_is_no_text(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "config.yml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "config.yml" in refused(path, capsys)


def test_file_that_is_not_there(tmp_path: Path, capsys: Capture) -> None:
    assert "absent.yml does not exist" in refused(tmp_path / "absent.yml", capsys)


def test_folder_instead_of_a_file(tmp_path: Path, capsys: Capture) -> None:
    assert "is a folder" in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "nothing to do"),
        (["predict"], "required"),
        (["predict", "--example", "llemma_7b_4_2_2"], "Did you mean llemma_7b_4_2_2_"),
        (["show-example", "x"], "llemma_7b_4_2_2_P"),
        (["--nonsense"], "--help"),
        (["predict", "-c", "a", "-e", "b"], "not allowed with"),
        (["absent.yml"], "absent.yml does not exist"),
    ],
)
def test_command_line_that_means_nothing(arguments: list[str], expected: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [str(EXAMPLE)],
        ["predict", str(EXAMPLE)],
        ["predict", "--config", str(EXAMPLE)],
        ["predict", "-c", str(EXAMPLE)],
        ["predict", "--example", EXAMPLE.stem],
        ["predict", "-e", EXAMPLE.name],
        ["--no-color", str(EXAMPLE)],
        ["--debug", "--no-color", "predict", str(EXAMPLE)],
    ],
)
def test_every_way_to_ask_for_a_prediction(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Step time ")
    assert captured.err == ""


@pytest.mark.parametrize("arguments", [["--json", str(EXAMPLE)], ["predict", "-e", EXAMPLE.stem, "--json"]])
def test_json(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "estimate-train-time/prediction/1"


def test_file_that_is_named_like_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    write(short_form(), tmp_path / "predict")
    monkeypatch.chdir(tmp_path)
    assert main(["./predict"]) == 0
    assert capsys.readouterr().out.startswith("Step time ")


def test_examples(capsys: Capture) -> None:
    assert main(["list-examples"]) == 0
    names = capsys.readouterr().out.split()
    assert {"llemma_7b_4_2_2_P", "llemma_7b_4_2_2_V"} <= set(names)
    for name in names:
        assert main(["predict", "--example", name]) == 0
        capsys.readouterr()
        assert main(["show-example", name]) == 0
        assert "training_config" in capsys.readouterr().out


def test_version_and_help(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"estimate-train-time {__version__}\n"
    assert main(["--help"]) == 0
    assert main(["predict", "--help"]) == 0


def run(arguments: list[str], root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a new process."""
    command = [sys.executable, "-m", "predictor", *arguments]
    return subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=False, env=os.environ | environment, encoding="utf-8"
    )


def test_output_that_cannot_show_every_character(root: Path) -> None:
    done = run([str(EXAMPLE)], root, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert " x " in done.stdout


def test_bad_input_in_a_new_process(root: Path) -> None:
    done = run(["absent.yml"], root)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_an_unexpected_error_is_called_a_bug(root: Path) -> None:
    script = (
        "import sys, predictor.__main__ as program\n"
        "program._answer = lambda arguments: 1 // 0\n"
        "sys.argv = ['predictor', *sys.argv[1:]]\n"
        "program.console()\n"
    )
    for flags, traceback in (([], False), (["--debug"], True)):
        command = [sys.executable, "-c", script, "predict", "x", *flags]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "ZeroDivisionError" in done.stderr
        assert ("Traceback" in done.stderr) is traceback


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes that break")
def test_pipe_that_breaks_is_quiet(root: Path) -> None:
    command = [sys.executable, "-m", "predictor", "--json", str(EXAMPLE)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (1, b"")


def in_shell(line: str, root: Path) -> tuple[int, str, str]:
    """Run a command line of bash, in which ``predict`` is the program."""
    program = f'predict() {{ "{sys.executable}" -m predictor "$@"; }}; {line}'
    done = subprocess.run(["bash", "-c", program], cwd=root, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


needs_bash = pytest.mark.skipif(which("bash") is None, reason="no bash")
needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


@needs_bash
@pytest.mark.parametrize("command", [str(EXAMPLE), "list-examples", "--version", "--help", "predict --help"])
def test_closed_output_is_no_bug(command: str, root: Path) -> None:
    line = "estimate-train-time: standard output is closed, so there is nowhere to print the answer\n"
    assert in_shell(f"predict {command} >&-", root) == (1, "", line)


@needs_bash
@needs_full_device
@pytest.mark.parametrize("command", [str(EXAMPLE), f"--json {EXAMPLE}", "--version", "--help"])
def test_full_device_is_no_bad_input(command: str, root: Path) -> None:
    line = "estimate-train-time: standard output: No space left on device\n"
    assert in_shell(f"predict {command} > /dev/full", root) == (1, "", line)


@needs_bash
def test_exit_code_does_where_stderr_takes_nothing(root: Path) -> None:
    assert in_shell("predict absent.yml 2>&-", root) == (2, "", "")
    assert in_shell("predict absent.yml >&- 2>&-", root) == (2, "", "")
    assert in_shell("predict --version >&- 2>&-", root) == (1, "", "")
    assert in_shell(f"predict {EXAMPLE} 2>&-", root)[0] == 0


@needs_bash
@needs_full_device
def test_exit_code_does_where_stderr_is_full(root: Path) -> None:
    assert in_shell("predict absent.yml 2> /dev/full", root) == (2, "", "")
