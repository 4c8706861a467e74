"""One run has one answer, however it is asked: options, file, another tool's file, Python, HTTP."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import predict, search
from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import in_full
from predictor.core.schema.inherited_keys import with_files
from predictor.core.workload.software import Framework
from predictor.serving.requests import answer_predict
from tests.golden.configurations import READERS

# Presets whose file on the hub says the same.
MODELS = ("llama3.1-8b", "gemma2-9b", "mixtral-8x22b")
LENGTH = 4096
REFUSED = "refused"


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run of a preset that says some switches and leaves others to its framework."""
    tensor, stages = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    parallelism: dict[str, Any] = {
        "tensor_parallel_size": tensor,
        "sequence_parallel": tensor > 1,
        "pipeline_parallel_size": stages,
        "data_parallel_size": draw(st.sampled_from([4, 8])),
    }
    training: dict[str, Any] = {"micro_batch_size": 1, "num_micro_batches": draw(st.sampled_from([2, 4]))}
    model: dict[str, Any] = {"preset": draw(st.sampled_from(MODELS)), "sequence_length": LENGTH}
    often_unsaid: list[tuple[dict[str, Any], str, list[Any]]] = [
        (model, "normalization", ["rms_norm", "fused_rms_norm", "layer_norm"]),
        (model, "loss", ["torch", "fused"] if tensor == 1 else ["fused"]),
        (model, "fused_rope", [True, False]),
        (parallelism, "zero_stage", [0, 1, 2, 3]),
        (parallelism, "overlap_gradient_reduction", [True, False]),
        (parallelism, "gradient_bucket_elements", [10**7]),
        (training, "framework", [*map(str, Framework), "megatron"]),
        (training, "precision", ["bf16", "fp16", "fp32"]),
        (training, "compiled", [True, False]),
        (training, "recompute", ["none", "full"]),
    ]
    for section, key, values in often_unsaid:
        if draw(st.booleans()):
            section[key] = draw(st.sampled_from(values))
    system = draw(st.sampled_from(["H100", "Perlmutter", "V100"]))
    return {"system": system, "model": model, "parallelism": parallelism, "training": training}


def changes(content: dict[str, Any], without: tuple[str, ...] = ("preset",)) -> dict[str, Any]:
    """Return the keys of a run's sections, dotted."""
    return {
        f"{section}.{key}": value
        for section in ("model", "parallelism", "training")
        for key, value in content[section].items()
        if key not in without
    }


def of_command(words: list[str]) -> float | str:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = main(["predict", *words, "--json"])
    return REFUSED if code else float(json.loads(out.getvalue())["step"]["time_us"])


def of_options(content: dict[str, Any], model: str) -> float | str:
    said = [word for key, value in changes(content).items() for word in ("--set", f"{key}={json.dumps(value)}")]
    return of_command(["--model", model, "--system", content["system"], *said])


def of_file(content: dict[str, Any]) -> float | str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return of_command([str(path)])


def of_hub_file(content: dict[str, Any]) -> dict[str, Any]:
    """Return a run whose model is that of its preset's file on the hub."""
    model = {key: value for key, value in content["model"].items() if key != "preset"}
    return {**content, "from": str(hub_file(content)), "model": model}


def hub_file(content: dict[str, Any]) -> Path:
    return READERS / "hugging_face" / f"{content['model']['preset']}.json"


def of_python(content: dict[str, Any]) -> float | str:
    try:
        return predict(content).step.us
    except ConfigError:
        return REFUSED


def of_http(body: dict[str, Any]) -> float | str:
    try:
        return float(answer_predict(body)["step"]["time_us"])
    except ConfigError:
        return REFUSED


@settings(max_examples=40, deadline=None)
@given(runs())
def test_a_run_has_one_answer(content: dict[str, Any]) -> None:
    preset, system = content["model"]["preset"], content["system"]
    answers = {
        "options": of_options(content, preset),
        "options beside a model's file": of_options(content, str(hub_file(content))),
        "file": of_file(content),
        "file that takes a model's file": of_file(of_hub_file(content)),
        "Python": of_python(content),
        "HTTP": of_http({"configuration": content}),
        "HTTP, options": of_http({"model": preset, "system": system, "changes": changes(content)}),
    }
    assert len(set(answers.values())) == 1, answers


@settings(max_examples=40, deadline=None)
@given(runs())
def test_a_run_that_says_what_it_took_is_the_same_and_takes_nothing(content: dict[str, Any]) -> None:
    whole, taken = in_full(with_files(content, Path.cwd())[0], Path.cwd())
    assert of_python(whole) == of_python(content)
    assert in_full(whole, Path.cwd())[1] is None
    for name, value in ({} if taken is None else taken.keys).items():
        section, key = name.split(".")
        assert key not in content[section]
        assert whole[section][key] == value
    for section in ("model", "parallelism", "training"):
        said = {key: value for key, value in content[section].items() if key != "preset"}
        assert said.items() <= whole[section].items()


@pytest.mark.parametrize("framework", [None, "megatron", "torchtitan", "deepspeed"])
def test_a_layout_that_search_finds_has_the_time_that_predict_gives_it(framework: str | None) -> None:
    found = search("llama3-8b", 32, system="H100", global_batch_size=64, framework=framework, top=8)
    for layout in found.layouts:
        assert predict(layout.configuration).step.us == layout.step.us
