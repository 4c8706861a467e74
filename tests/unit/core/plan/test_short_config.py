"""The short form says the same as the full form that it expands to."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import load
from predictor.core.plan.short_config import IGNORED, OVERRIDES, REQUIRED, TRAINING_CONFIG, expand, is_short
from predictor.core.schema.short_names import OPERATORS_BY_SHORT_NAME
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.transformer import Attention, Normalization
from tests.unit.examples import full_form, short_form, write

ROOT = Path(__file__).resolve().parents[4]


def test_forms_are_told_apart() -> None:
    assert is_short(short_form())
    assert not is_short(full_form())


def test_example_becomes_the_run_that_it_describes(tmp_path: Path) -> None:
    run, system = load(write(short_form(), tmp_path / "config.yml"))
    assert system.name == "Perlmutter"
    assert (run.layout.pipeline_parallel_size, run.layout.tensor_parallel_size, run.layout.data_parallel_size) == (
        4,
        2,
        2,
    )
    assert (run.micro_batch_size, run.num_micro_batches, run.layout.gpus_per_node) == (4, 8, 4)
    assert (run.model.num_layers, run.model.hidden_size, run.model.num_attention_heads) == (32, 4096, 32)
    assert run.gradient_bucket_elements == 1_260_000_000
    assert run.recompute is Recompute.FULL
    assert run.model.normalization is Normalization.RMS_NORM


def test_expansion_predicts_the_same_as_its_full_form(tmp_path: Path) -> None:
    content = short_form(pp=2, precision="fp16", vocab_size=32000)
    full = expand(content)
    full["model"]["layer_operators"] = list(full["model"]["layer_operators"])
    full["system"] = "Perlmutter"
    short_run, _ = load(write(content, tmp_path / "short.yml"))
    full_run, _ = load(write(full, tmp_path / "full.yml"))
    assert short_run == full_run


@pytest.mark.parametrize(
    ("operators", "attention"),
    [
        (["linear1", "flash_atten"], Attention.FLASH),
        (["baddbmm", "ScaledUpperTriangMaskedSoftmax", "bmm"], Attention.FUSED_SOFTMAX),
        (["baddbmm", "fillmask", "softmax", "bmm"], Attention.UNFUSED),
    ],
)
def test_attention_follows_from_the_operators(operators: list[str], attention: Attention) -> None:
    assert expand(short_form(encoder_function_list=operators))["model"]["attention"] == attention


def test_one_synchronisation_means_a_parallel_residual() -> None:
    assert expand(short_form(fwd_syncs=1))["model"]["parallel_residual"]
    assert not expand(short_form(fwd_syncs=2))["model"]["parallel_residual"]


def test_where_results_went_is_ignored() -> None:
    assert expand(short_form(**dict.fromkeys(IGNORED, "somewhere"))) == expand(short_form())


@pytest.mark.parametrize("key", REQUIRED)
def test_every_required_key_is_required(key: str) -> None:
    with pytest.raises(KeyError, match=key):
        expand(short_form(**{key: None}))


@pytest.mark.parametrize("key", REQUIRED)
def test_null_is_no_value(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is null"):
        expand({**short_form(), key: None})


@pytest.mark.parametrize("place", range(len(TRAINING_CONFIG)))
def test_null_is_no_number(place: int) -> None:
    content = short_form()
    content["training_config"][place] = None
    with pytest.raises(ConfigError, match=f"training_config has null for {TRAINING_CONFIG[place]};"):
        expand(content)


def test_null_does_not_skip_the_check_of_the_gpu(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gpu_name is null"):
        load(write({**short_form(), "gpu_name": None}, tmp_path / "config.yml"))


@pytest.mark.parametrize("name", ["linear_final", "parallel_cross_entropy_128", "embedding", "optimizer"])
def test_layer_holds_only_what_a_layer_runs(name: str) -> None:
    for operators in ([name], ["linear1", name]):
        with pytest.raises(ConfigError, match=f"encoder_function_list names {name}, not an operator of a layer"):
            expand(short_form(encoder_function_list=operators))


def test_no_key_belongs_to_two_sections() -> None:
    keys = [*REQUIRED, *IGNORED, *(key for keys in OVERRIDES.values() for key in keys)]
    assert len(keys) == len(set(keys))


def test_every_short_name_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name in (*OPERATORS_BY_SHORT_NAME, *REQUIRED, *(key for keys in OVERRIDES.values() for key in keys)):
        assert f"`{name}`" in text, f"docs/configuration.md does not mention {name}"


def test_unknown_operator_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean RoPE\?.*flash_atten"):
        expand(short_form(function_list=["RoPe"]))


def test_short_form_takes_a_system_that_is_known_from_data_sheets(tmp_path: Path) -> None:
    folders = {
        f"{key}_data_folder": f"./regressors/Selene/{kind}"
        for key, kind in (("operator", "operator"), ("nccl", "nccl"))
    }
    run, system = load(write(short_form(**folders), tmp_path / "c.yml"))
    assert system.name == "Selene"
    assert run.layout.gpus_per_node == 4
