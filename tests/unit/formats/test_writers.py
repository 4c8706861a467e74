"""What a search found is written as a framework's own arguments, which our reader reads back to the same run."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from model_training_framework.config import ExperimentConfig
from model_training_framework.prediction import predict_experiment
from model_training_framework.slurm.job_values import Place, command
from predictor import search
from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import prepare
from predictor.core.schema.merging import merged
from predictor.core.schema.sections import RunConfig
from predictor.core.step.prediction import predict
from predictor.formats import read_any
from predictor.formats.launch_job import COMMANDS
from predictor.formats.megatron import writer as megatron
from predictor.formats.writers import WRITERS, written
from predictor.layout_search.answer import configuration_of
from predictor.layout_search.candidate import Degrees
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchQuestion, search_problem

MODELS = {
    "megatron": (
        *("llama3-8b", "llama3.1-405b", "mixtral-8x7b", "gpt3-175b", "qwen3-30b-a3b", "mistral-7b"),
        *("deepseek-v2-lite", "deepseek-v3", "nemotron-4-15b"),
    ),
    "megatron-bridge": ("llama3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "nemotron-4-15b"),
    "torchtitan": ("llama3-8b", "llama3.1-405b", "qwen3-30b-a3b"),
    "deepspeed": ("llama3-8b", "mixtral-8x7b", "gpt3-175b"),
    "gpt-neox": ("llama3-8b", "gpt3-175b", "mistral-7b"),
    "transformers": ("llama3-8b", "mixtral-8x7b", "mistral-7b", "gpt2-xl", "qwen3-4b"),
}
CASES = [(framework, model) for framework, models in MODELS.items() for model in models]


# What a job passes on of its experiment, as words of its command.
PASSED_ON = {
    "megatron": "TRAIN_ITERS={steps}|LEARNING_RATE=0.0003|DATA_PATH=tokens|TOKENIZER_MODEL=/models/its tokenizer",
    "torchtitan": (
        "--training.steps|{steps}|LEARNING_RATE=0.0003|--dataloader.dataset|tokens|--module|run|"
        "HF_ASSETS_PATH=/models/its tokenizer"
    ),
    "deepspeed": "--config|{config}",
    "transformers": "TRAIN_ITERS={steps}|LEARNING_RATE=0.0003|DATASET_NAME=tokens",
}


def found(framework: str, model: str = "llama3-8b", **options: Any) -> Any:
    return search(model, 256, system="H100", global_batch_size=512, framework=framework, **options)


@pytest.mark.parametrize(("framework", "model"), CASES)
def test_arguments_are_read_back_to_the_same_run(framework: str, model: str, tmp_path: Path) -> None:
    result = found(framework, model, top=3)
    for number, layout in enumerate(result.layouts, start=1):
        path = tmp_path / f"arguments{WRITERS[framework].suffix}"
        path.write_text(result.arguments(number), encoding="utf-8")
        own: dict[str, Any] = {"system": "H100", "from": str(path)}
        if framework == "deepspeed":  # the file has no model
            own["model"] = layout.configuration["model"]
            own["parallelism"] = {"expert_parallel_size": layout.layout["expert_parallel_size"]}
            own["parallelism"] |= {"data_parallel_size": layout.layout["data_parallel_size"]}
            own["training"] = {"recompute": layout.layout["recompute"], "framework": "deepspeed"}
        loaded = prepare(own, tmp_path)
        assert predict(loaded.run, loaded.system).step.us == pytest.approx(layout.step.us, rel=1e-9)


@pytest.mark.parametrize(("framework", "model"), CASES)
def test_any_layout_that_a_framework_runs_has_arguments(framework: str, model: str) -> None:
    problem = search_problem(SearchQuestion(model, 96, system="H100", global_batch_size=384, framework=framework))
    every = list(plans(problem.space))
    for plan in every[:: max(1, len(every) // 6)]:
        content = configuration_of(problem.space, plan, problem.content)
        assert written(content, framework, Path.cwd())


def test_lighter_ends_of_a_pipeline_have_arguments() -> None:
    content = {"system": "H100", "model": {"preset": "llama3-8b", "num_layers": 61}, "training": {}}
    problem = search_problem(SearchQuestion(content, 64, global_batch_size=256, framework="megatron"))
    staged = {plan.degrees.pipeline: plan for plan in plans(problem.space) if plan.degrees.pipeline > 1}
    assert len(staged) > 3
    for stages, plan in staged.items():
        text = written(configuration_of(problem.space, plan, problem.content), "megatron", Path.cwd())
        first, last = problem.space.run(plan).layers_per_stage[0], problem.space.run(plan).layers_per_stage[-1]
        assert f"--pipeline-model-parallel-size {stages}\n" in text
        assert f"--decoder-first-pipeline-num-layers {first}\n" in text
        assert f"--decoder-last-pipeline-num-layers {last}\n" in text


def configuration(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that Megatron-LM's arguments express, with changes."""
    content: dict[str, Any] = found("megatron", top=1).layouts[0].configuration
    sections = {key: {**content[key], **changes.get(key, {})} for key in ("model", "parallelism", "training")}
    return {"system": "H100", **sections}


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"gemm_recipe": "fp8_tensorwise", "layers_in_16_bits_at_start": 1}},
        {"training": {"recompute": "full", "recompute_num_layers": 2}, "parallelism": {"fp32_gradients": False}},
        {"training": {"precision": "fp16"}},
        {"training": {"cuda_graphs": True}, "model": {"biases": "qkv", "qk_norm": True, "tied_embeddings": True}},
        {"model": {"attention": "fused_softmax", "normalization": "layer_norm", "fused_side_kernels": False}},
        {"model": {"sliding_window": 1024, "activation": "geglu", "hidden_dropout": 0.1}},
    ],
)
def test_megatron_has_arguments_for_more_than_a_search_sets(changes: dict[str, Any]) -> None:
    layout = {**changes.get("parallelism", {}), "context_parallel_size": 1, "data_parallel_size": 256}
    changes = {**changes, "parallelism": layout}
    if "attention" in changes.get("model", {}):
        changes["model"] |= {"fused_rope": False}
    content = configuration(**changes)
    content["parallelism"] |= {"tensor_parallel_size": 1, "sequence_parallel": False, "pipeline_parallel_size": 1}
    content["parallelism"] |= {"overlap_tensor_parallel": False, "overlap_linear_traffic": False}
    content["parallelism"] |= {"schedule": "1f1b", "virtual_pipeline_parallel_size": 1}
    assert "--num-layers 32" in written(content, "megatron", Path.cwd())


@pytest.mark.parametrize(
    ("framework", "changes", "message"),
    [
        ("megatron", {"model": {"sliding_window": 1024, "sliding_window_layers": 8}}, "sliding_window_layers"),
        ("megatron", {"parallelism": {"zero_stage": 3}}, "zero_stage is 3; Megatron-LM's distributed optimizer"),
        ("megatron", {"model": {"loss": "torch"}}, "model.loss is torch; Megatron-LM's is"),
        ("megatron", {"model": {"loss": "fused"}}, "refuse Transformer Engine's fused loss"),
        ("megatron", {"training": {"recompute": "per_op"}}, "training.recompute is per_op; Megatron-LM has"),
        ("torchtitan", {"model": {"num_layers": 33}}, "torchtitan has no flavor of this model"),
        ("torchtitan", {}, "parallelism.zero_stage is 1; torchtitan has 3"),
        ("deepspeed", {"training": {"cuda_graphs": True}}, "DeepSpeed has no arguments for"),
        ("deepspeed", {"parallelism": {"zero_stage": 3, "zero_group_size": 8}}, "DeepSpeed 0.19 has no MiCS"),
    ],
)
def test_what_would_be_lost_is_refused(framework: str, changes: dict[str, Any], message: str) -> None:
    content = configuration(**changes)
    if framework == "torchtitan" and not changes:
        content["model"]["normalization"] = "rms_norm"
        content["model"] |= {"fused_side_kernels": False, "fused_rope": False}
    if "sliding_window" in changes.get("model", {}) or "zero_stage" in changes.get("parallelism", {}):
        content["parallelism"] |= {"context_parallel_size": 1, "data_parallel_size": 256}
    with pytest.raises(ConfigError) as caught:
        written(content, framework, Path.cwd())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("framework", "model", "changes", "words", "absent"),
    [
        (
            "torchtitan",
            "llama3.1-8b",
            {"training": {"gemm_recipe": "fp8_tensorwise"}, "parallelism": {"gather_precision": "fp8"}},
            ("enable_fsdp_float8_all_gather = true",),
            ("recipe_name",),  # torchtitan refuses both together
        ),
        ("torchtitan", "llama3.1-8b", {"training": {"gemm_recipe": "fp8_rowwise"}}, ('recipe_name = "rowwise"',), ()),
        (
            "torchtitan",
            "qwen3-30b-a3b",
            {"training": {"recompute": "full", "recompute_stops_early": True}}
            | {"parallelism": {"expert_parallel_size": 8, "expert_dispatcher": "deepep"}},
            ("early_stop = true", 'expert_parallel_comm_backend = "deepep"'),
            (),
        ),
        ("torchtitan", "llama3.1-8b", {"parallelism": {"zero_group_size": 8}}, ("data_parallel_shard_degree = 8",), ()),
        (
            "deepspeed",
            "llama3-8b",
            {"training": {"recompute": "full", "synchronize_each_layer": True}},
            ('"synchronize_checkpoint_boundary": true',),
            (),
        ),
    ],
)
def test_keys_that_no_search_sets_are_written_too(
    framework: str, model: str, changes: dict[str, Any], words: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    problem = search_problem(SearchQuestion(model, 64, system="H100", global_batch_size=64, framework=framework))
    alone = Degrees(1, 1, 1, 64, 1)
    plan = next(plan for plan in plans(problem.space) if plan.degrees == alone and plan.zero_stage == 3)
    content = merged(configuration_of(problem.space, plan, problem.content), changes)
    text = written(content, framework, Path.cwd(), "0.2" if framework == "torchtitan" else None)
    assert all(word in text for word in words)
    assert not any(word in text for word in absent)


@pytest.mark.parametrize(
    ("version", "changes", "words"),
    [
        ("0.17", {"model": {"loss": "fused"}}, "--cross-entropy-fusion-impl te"),
        ("0.17", {"training": {"cuda_graphs": True}}, "--cuda-graph-impl local\n    --cuda-graph-scope full_iteration"),
        ("core_v0.18.2", {"training": {"cuda_graphs": True}}, "--cuda-graph-impl full_iteration"),
        ("0.19", {"training": {"cuda_graphs": ["attn"]}}, "--cuda-graph-modules attn"),
        ("0.16", {"training": {"cuda_graphs": ["attn"]}}, "--cuda-graph-scope attn"),
    ],
)
def test_megatron_spells_arguments_as_the_release_does(version: str, changes: dict[str, Any], words: str) -> None:
    assert words in written(configuration(**changes), "megatron", Path.cwd(), version)


def test_a_hybrid_and_its_experts_are_spelled_as_the_release_does() -> None:
    problem = search_problem(
        SearchQuestion("nemotron-h-8b", 8, global_batch_size=8, system="H100", framework="megatron")
    )
    plan = next(plan for plan in plans(problem.space) if plan.degrees == Degrees(1, 1, 1, 8, 1))
    content = configuration_of(problem.space, plan, problem.content)
    older, newer = (written(content, "megatron", Path.cwd(), version) for version in ("0.16", "0.18"))
    assert "pretrain_mamba.py" in older
    assert "--hybrid-override-pattern 'M-M" in older
    assert "pretrain_hybrid.py" in newer
    assert "--hybrid-layer-pattern 'M-M" in newer
    split = next(plan for plan in plans(problem.space) if plan.num_chunks > 1)
    with pytest.raises(ConfigError, match=r"take --framework-version 0\.17 or a later one"):
        written(configuration_of(problem.space, split, problem.content), "megatron", Path.cwd(), "0.16")


def test_a_writer_that_forgets_an_argument_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Callable[[RunConfig, int, int, str], str] = megatron.write
    forgetful = replace(
        WRITERS["megatron"], write=lambda *given: whole(*given).replace("    --use-distributed-optimizer\n", "")
    )
    monkeypatch.setitem(WRITERS, "megatron", forgetful)
    with pytest.raises(ConfigError, match=r"Megatron-LM 0\.\d+ has no arguments for zero_stage"):
        found("megatron", top=1).arguments()


def test_files_are_those_of_their_frameworks() -> None:
    script = found("megatron", top=1).arguments()
    assert script.startswith("#!/bin/bash\n")
    assert "torchrun --nproc-per-node 8 --nnodes 32" in script
    assert "--bf16" in script
    job = tomllib.loads(found("torchtitan", top=1).arguments(version="0.2"))
    assert job["model"] == {"name": "llama3", "flavor": "8B"}
    neox = yaml.safe_load(found("gpt-neox", top=1).arguments())
    assert (neox["num_layers"], neox["intermediate_size"], neox["train_batch_size"]) == (32, 3 * 14336, 512)
    with pytest.raises(
        ConfigError, match="--write-job is for megatron, torchtitan, deepspeed, transformers; gpt-neox starts"
    ):
        found("gpt-neox", top=1).job("neox.yml")
    assert json.loads(found("deepspeed", top=1).arguments())["train_batch_size"] == 512


@pytest.mark.parametrize("framework", COMMANDS)
def test_a_job_of_the_launcher_predicts_the_same(framework: str, tmp_path: Path) -> None:
    result = found(framework, top=1, train_tokens=1e12, price=2.0)
    content = yaml.safe_load(result.job(f"run{WRITERS[framework].suffix}"))
    assert "learning_rate" not in content["training"]
    content["training"]["learning_rate"] = 3e-4
    content["data"]["dataset_name"] = "tokens"
    content["custom_params"] = {"tokenizer": "/models/its tokenizer"}
    experiment = ExperimentConfig.from_dict(content)
    started = shlex.split(command(experiment, Place(tmp_path / "job", tmp_path)))
    steps = result.layouts[0].training.steps
    passed = PASSED_ON[framework].format(steps=steps, config=tmp_path / "job" / "config.yaml").split("|")
    assert set(passed) <= set(started)
    predicted = predict_experiment(experiment, tmp_path)
    assert predicted.step_s == pytest.approx(result.layouts[0].step.us / 1e6, rel=1e-9)
    assert predicted.num_gpus == 256
    assert predicted.steps == result.layouts[0].training.steps
    assert predicted.cost is not None


def test_command_writes_arguments_and_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, job = tmp_path / "run.sh", tmp_path / "job.yaml"
    options = ["--system", "H100", "--gpus", "64", "--global-batch-size", "256", "--top", "1"]
    asked = ["search", "--model", "llama3-8b", *options]
    assert main([*asked, "--framework", "megatron", "--write-arguments", str(script), "--write-job", str(job)]) == 0
    capsys.readouterr()
    assert read_any(script).content["model"]["hidden_size"] == 4096
    assert yaml.safe_load(job.read_text(encoding="utf-8"))["command"].endswith(f" bash {script}")
    for more, message in (
        (["--write-arguments", str(script)], "--write-arguments needs --framework"),
        (["--framework", "megatron", "--write-job", str(job)], "--write-job needs --write-arguments"),
        (["--framework", "megatron", "--framework-version", "0.18"], "--framework-version needs --write-arguments"),
        (
            ["--framework", "megatron", "--framework-version", "0.9", "--write-arguments", str(script)],
            "--framework-version is 0.9; arguments of Megatron-LM are written for 0.15, 0.16, 0.17, 0.18, 0.19",
        ),
        (
            ["--framework", "deepspeed", "--framework-version", "0.18", "--write-arguments", str(script)],
            "written for no version in particular",
        ),
    ):
        assert main([*asked, *more]) == 2
        assert message in capsys.readouterr().err
