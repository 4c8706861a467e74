"""Jobs of torchtitan by release: flavors of its models, batches in tokens, keys of 2024, schedules, adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.predict.prediction import predict
from predictor.core.schema.read import Read
from predictor.formats import read_any
from predictor.formats.torchtitan.flavors import COMMON, flavors
from predictor.layout_search.model_options import of_model

MODEL = '[model]\nname = "llama3"\nflavor = "8B"\n'


def found(tmp_path: Path, text: str) -> Read:
    path = tmp_path / "job.toml"
    path.write_text(text, encoding="utf-8")
    return read_any(path)


def layout(tmp_path: Path, lines: str) -> dict[str, Any]:
    return dict(found(tmp_path, f"{MODEL}[parallelism]\n{lines}").content["parallelism"])


def test_a_model_with_a_tower_asks_for_the_size_of_its_images(tmp_path: Path) -> None:
    read = found(tmp_path, '[model]\nname = "qwen3_5"\nflavor = "9B"\n')
    assert read.content["model"]["preset"] == "qwen3.5-9b"
    assert read.content["model"]["vision"]["num_layers"] == 27
    assert "rotary_fraction" not in read.content["model"]  # the preset's
    assert list(read.unsaid) == [
        "model.vision.images_per_sample",
        "model.vision.image_size",
        "parallelism.data_parallel_size",
    ]


@pytest.mark.parametrize(("flavor", "billions"), [("0.8B", 1.11), ("4B", 5.17), ("122B-A10B", 122.8)])
def test_sizes_of_models_with_towers(flavor: str, billions: float, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f'[model]\nname = "qwen3_5"\nflavor = "{flavor}"\n', encoding="utf-8")
    config = of_model(str(path), ["gpus=128", "model.vision.image_size=512"], "H100")
    assert predict(config).loaded.run.model.num_parameters() / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[model]\nname = "qwen3_vl"\nflavor = "4B"\n', "its vision tower sees images"),
        ('[model]\nname = "llama33"\n', "it has no preset. Did you mean llama3? Known: llama2, llama3, llama4, qwen3"),
        (
            '[model]\nname = "llama3"\nflavor = "9B"',
            "it has no preset. Known of llama3: debugmodel, 1B",
        ),
    ],
)
def test_a_model_without_sizes_is_asked_for(text: str, message: str, tmp_path: Path) -> None:
    unsaid = found(tmp_path, text).unsaid["model.num_layers"]
    assert message in unsaid
    assert unsaid.endswith("take its config.json in front (from: [config.json, job.toml]), or")


@pytest.mark.parametrize(
    ("name", "flavor", "sizes"),
    [
        ("llama3", "debugmodel_flex_attn", {"num_layers": 6, "ffn_hidden_size": 768, "vocab_size": 2048}),
        ("llama4", "17bx16e_irope", {"attention_chunk": 8192, "rotary_layers": [False, True, True, True]}),
        ("qwen3", "debugmodel_non_fused_qkv", {"head_dim": 128, "tied_embeddings": True, "qk_norm": True}),
        ("deepseek_v3", "236B", {"preset": "deepseek-v2"}),
    ],
)
def test_flavors_with_sizes_of_their_own(name: str, flavor: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    model = found(tmp_path, f'[model]\nname = "{name}"\nflavor = "{flavor}"').content["model"]
    assert sizes.items() <= model.items()


def test_every_flavor_can_be_predicted() -> None:
    for name, of in flavors().items():
        for flavor, model in of.items():
            keys: dict[str, Any] = (
                {"preset": model} if isinstance(model, str) else {**({} if "preset" in model else COMMON), **model}
            )
            keys |= {"vision": {**keys["vision"], "image_size": 512}} if "vision" in keys else {}
            content = {"system": "H100", "model": {**keys, "sequence_length": 1024}}
            batch = {"training": {"micro_batch_size": 1, "num_micro_batches": 1, "conditions": "model"}}
            assert predict({**content, **batch}).modelled_us > 0, (name, flavor)


def test_batches_in_tokens(tmp_path: Path) -> None:
    text = (
        "num_tokens_per_microbatch_per_dp_rank = 32768\nmax_context_length = 8192\nnum_tokens_per_train_step = 1048576"
    )
    job = found(tmp_path, f"{MODEL}[training]\n{text}").content
    assert job["model"]["sequence_length"] == 8192
    assert (job["training"]["micro_batch_size"], job["training"]["global_batch_size"]) == (4, 128)
    piped = found(
        tmp_path,
        f"{MODEL}[training]\nmax_context_length = 4096\n[parallelism]\npipeline_parallel_degree = 2\n"
        "num_pp_microbatches = 6",
    ).content["training"]
    assert (piped["micro_batch_size"], piped["num_micro_batches"]) == (4, 6)


@pytest.mark.parametrize(("name", "ours"), [("ZBVZeroBubble", "zbv"), ("DualPipeV", "dualpipe_v")])
def test_schedules_in_a_v(name: str, ours: str, tmp_path: Path) -> None:
    text = f"pipeline_parallel_degree = 4\npipeline_parallel_schedule = '{name}'"
    parallelism = layout(tmp_path, text)
    assert (parallelism["schedule"], parallelism["virtual_pipeline_parallel_size"]) == (ours, 2)
    assert parallelism["layers_per_stage"] == [[4, 3], [5, 4], [4, 4], [4, 4]]  # 34 on 8 stages, less one at both ends


@pytest.mark.parametrize(
    "lines",
    [
        "pipeline_parallel_split_points = ['layers.10', 'layers.24']",
        "module_fqns_per_model_part = ["
        + ", ".join(str([f"layers.{layer}" for layer in part]) for part in (range(10), range(10, 24), range(24, 32)))
        + "]",
    ],
)
def test_parts_by_the_names_of_their_modules(lines: str, tmp_path: Path) -> None:
    assert layout(tmp_path, f"pipeline_parallel_degree = 3\n{lines}")["layers_per_stage"] == [10, 14, 8]


def test_keys_of_2024(tmp_path: Path) -> None:
    text = (
        f"{MODEL}[training]\nbatch_size = 8\ndata_parallel_degree = 4\ntensor_parallel_degree = 2\n"
        "[experimental]\npipeline_parallel_degree = 2\nenable_async_tensor_parallel = true\n"
    )
    content = found(tmp_path, text).content
    parallelism = content["parallelism"]
    assert (parallelism["data_parallel_size"], parallelism["tensor_parallel_size"]) == (4, 2)
    assert (parallelism["pipeline_parallel_size"], parallelism["overlap_linear_traffic"]) == (2, True)
    # As many micro-batches as stages, unless said: torchtitan 0.0.2, parallelisms/pipelining_utils.py.
    assert (content["training"]["micro_batch_size"], content["training"]["num_micro_batches"]) == (4, 2)


def test_training_in_16_bits(tmp_path: Path) -> None:
    job = found(tmp_path, f"{MODEL}[training]\ndtype = 'bfloat16'")
    assert job.content["training"]["optimizer_state_bytes"] == 4
    assert "fp32_parameters" not in job.content["parallelism"]
    assert len(job.notes) == 1


def test_adapters(tmp_path: Path) -> None:
    lora = found(tmp_path, f'{MODEL}converters = ["lora"]\n[lora]\nrank = 16\ntarget_modules = ["wqkv", "wo"]')
    assert lora.content["training"]["lora"] == {"rank": 16, "targets": ["qkv", "attention_output"]}
