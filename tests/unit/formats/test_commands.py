"""Commands on files of other trainers with low precision: predict, search, whatif and compare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.core.plan.loading import load
from predictor.layout_search.model_options import of_model

READERS = Path(__file__).resolve().parents[2] / "data" / "readers"
FILES = [
    ("H100", "megatron/llama3_8b_fp8.sh", "fp8_delayed", "megatron-lm"),
    ("B200", "megatron/llama3_70b_nvfp4.args", "nvfp4", "megatron-lm"),
    ("H100", "torchtitan/llama3_8b_float8.toml", "fp8_tensorwise", "torchtitan"),
]


def written(tmp_path: Path, system: str, name: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(f"system: {system}\nfrom: {READERS / name}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("system", "name", "recipe", "framework"), FILES)
def test_file_becomes_a_run(system: str, name: str, recipe: str, framework: str, tmp_path: Path) -> None:
    run = load(written(tmp_path, system, name))[0]
    assert (run.gemm_recipe, run.framework) == (recipe, framework)


def test_every_key_of_a_run_in_nvfp4(tmp_path: Path) -> None:
    run = load(written(tmp_path, "B200", "megatron/llama3_70b_nvfp4.args"))[0]
    assert (run.layers_in_16_bits_at_start, run.layers_in_16_bits_at_end) == (0, 4)
    assert set(run.recompute_modules) == {"layernorm", "mlp"}
    assert run.zero_group_size == 4
    assert run.has_fused_loss
    assert run.full_cuda_graphs
    assert run.fused_gradient_accumulation


@pytest.mark.parametrize(("system", "name", "recipe", "framework"), FILES)
def test_search_keeps_what_the_file_says_but_its_layout(
    system: str, name: str, recipe: str, framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = tmp_path / "best.yaml"
    words = ["search", "--model", str(READERS / name), "--system", system, "--gpus", "8", "--global-batch-size", "64"]
    limits = ["--max-micro-batch-size", "2", "--max-context-parallel", "1", "--top", "1", "--write", str(best)]
    assert main([*words, *limits]) == 0
    assert "Runs as Megatron-LM trains" not in capsys.readouterr().out
    run = load(best)[0]
    assert (run.gemm_recipe, run.framework, run.zero_group_size) == (recipe, framework, None)


@pytest.mark.parametrize(("system", "name"), [file[:2] for file in FILES])
def test_whatif_answers(system: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, system, name)
    assert main(["whatif", str(path), "--set", "peak_tflop_per_s=x2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_compare_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tmp_path, "H100", "megatron/llama3_8b_fp8.sh")
    second = first.rename(tmp_path / "fp8.yaml")
    assert main(["compare", str(second), str(written(tmp_path, "H100", "torchtitan/llama3_8b_float8.toml"))]) == 0
    assert "run.yaml" in capsys.readouterr().out


def test_problems_of_a_file_have_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "launch.sh").write_text("--num-layers x --fp16 --bf16\n", encoding="utf-8")
    config = tmp_path / "run.yaml"
    config.write_text("system: H100\nfrom: launch.sh\n", encoding="utf-8")
    assert main(["predict", str(config)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("6 problems:")
    assert all(line.startswith(("  launch.sh:1: ", "  launch.sh: ")) for line in lines[1:])
    assert any(line.startswith("  launch.sh:1: --num-layers is x") for line in lines)


def test_search_of_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        """from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common


def small_config() -> "ConfigContainer":
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    return cfg


def other_config() -> "ConfigContainer":
    return small_config()
""",
        encoding="utf-8",
    )
    words = ["search", "--model", f"{recipe}:small_config", "--system", "H100", "--gpus", "8"]
    limits = ["--global-batch-size", "16", "--max-micro-batch-size", "1", "--max-context-parallel", "1", "--top", "1"]
    assert main([*words, *limits]) == 0
    assert "16 samples of 4,096 tokens a step" in capsys.readouterr().out


def test_script_as_it_is_with_what_it_leaves_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 128 --bf16 --overlap-grad-reduce "
        "--use-distributed-optimizer --tensor-model-parallel-size 2\n",
        encoding="utf-8",
    )
    command = ["predict", "--model", str(script), "--system", "H100"]
    assert main(command) == 2
    assert "set model.vocab_size" in capsys.readouterr().err
    assert main([*command, "--set", "model.vocab_size=32000"]) == 2
    assert "--gpus is missing" in capsys.readouterr().err
    assert main([*command, "--set", "model.vocab_size=32000", "--gpus", "256"]) == 0
    assert "256 GPUs = 1 pipeline × 2 tensor × 128 data parallel" in capsys.readouterr().out
    configuration = of_model(str(script), ["model.vocab_size=32000", "gpus=256"], "H100")
    assert configuration.content["parallelism"]["gradient_bucket_elements"] == 128_000_000  # a million per replica
