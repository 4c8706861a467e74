"""Default software of a run: what it takes where a configuration says nothing, and what it says of that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from predictor import compare, predict, search
from predictor.__main__ import main
from predictor.core.base.bundled import EXAMPLES_FOLDER
from predictor.core.schema.software import SECTION_DEFAULTS, with_software
from predictor.core.workload.frameworks import SECTIONS, defaults_of
from predictor.core.workload.software import LIGER, LIGER_BY_DEFAULT, Framework
from predictor.layout_search.model_options import of_model
from tests.unit.examples import write

ROOT = Path(__file__).resolve().parents[2]
TOKENS = {"micro_batch_size": 1, "global_batch_size": 256}
SILENT: dict[str, Any] = {
    "system": "H100",
    "model": "llama3-8b",
    "parallelism": {"tensor_parallel_size": 2, "data_parallel_size": 32},
    "training": TOKENS,
}
OPTIONS = ["gpus=64", "tensor_parallel_size=2", "micro_batch_size=1", "global_batch_size=256"]
LINE = "No framework is named"


def lines(prediction: Any) -> list[str]:
    return [note for note in prediction.notes if note.startswith(LINE)]


def filled(training: dict[str, Any], **layout: Any) -> dict[str, dict[str, Any]]:
    """Return what a model of eight layers takes."""
    content = {"model": {"num_layers": 8}, "parallelism": layout, "training": training}
    return with_software(content, Framework.MEGATRON_LM, "bf16")[0]


def test_a_file_is_the_run_of_the_same_options_and_says_its_software_in_a_line() -> None:
    of_file, of_options = predict(SILENT), predict(of_model("llama3-8b", OPTIONS, "H100"))
    assert of_file.step == of_options.step
    said = f"{LINE}: as Megatron-LM trains, in bf16, where no key says otherwise; --framework names another."
    assert lines(of_file) == lines(of_options) == [said]
    taken = of_file.to_dict()["taken"]
    assert taken["framework"] == "megatron-lm"
    assert taken["named"] is False
    assert taken["keys"]["training.precision"] == "bf16"
    assert taken["keys"]["model.normalization"] == "fused_rms_norm"


def test_the_default_framework_is_the_one_of_its_name() -> None:
    named = {**SILENT, "training": {**TOKENS, "framework": "megatron-lm", "conditions": "ordinary"}}
    assert predict(named).step == predict(SILENT).step
    assert lines(predict(named)) == []
    assert predict(named).to_dict()["taken"]["named"] is True


@pytest.mark.parametrize("kernel", [name for name, keys in LIGER.items() if keys])
def test_each_of_ligers_kernels_changes_the_step_of_a_model_of_the_hub(kernel: str) -> None:
    def step_us(keys: Mapping[str, object]) -> float:
        model = {"preset": "llama3-8b", **keys}
        layout = {"data_parallel_size": 8, "zero_stage": 3}
        training = {"framework": "transformers", "micro_batch_size": 4, "num_micro_batches": 1}
        return predict({"system": "Perlmutter", "model": model, "parallelism": layout, "training": training}).step.us

    changes = step_us(LIGER[kernel]) / step_us({})
    assert 0.8 < changes < (1.02 if kernel == "fused_linear_cross_entropy" else 1.0)


def test_liger_replaces_all_but_the_loss_alone_by_default() -> None:
    assert {*LIGER} - {*LIGER_BY_DEFAULT} == {"cross_entropy"}
    together = {key: value for name in LIGER_BY_DEFAULT for key, value in LIGER[name].items()}
    assert together == {
        "fused_rope": True, "normalization": "fused_rms_norm", "fused_side_kernels": True, "loss": "fused_linear"
    }  # fmt: skip


def test_a_program_of_ones_own_has_nothing_that_it_does_not_say() -> None:
    own = {**SILENT, "training": {**TOKENS, "framework": "pytorch", "precision": "fp16"}}
    assert predict(own).to_dict()["taken"] is None
    assert predict(own).step.us > 1.2 * predict(SILENT).step.us
    off = {"model": {"preset": "llama3-8b"}, "parallelism": dict(SILENT["parallelism"]), "training": {**TOKENS}}
    for section, keys in SECTION_DEFAULTS.items():
        off[section] = {**keys, **off[section]}
    off["training"] |= {"precision": "fp16", "framework": "pytorch"}
    assert predict({"system": "H100", **off}).step == predict(own).step
    assert lines(predict({"system": "H100", **off})) == []


def test_explicit_keys_win_null_too() -> None:
    said = filled({"precision": "fp32"}, gradient_reduction=None, overlap_tensor_parallel=False)
    assert said["training"]["precision"] == "fp32"
    assert said["parallelism"]["gradient_reduction"] is None
    assert said["parallelism"]["overlap_tensor_parallel"] is False
    eager = predict(SILENT, hardware={"model.normalization": "rms_norm"})
    assert eager.run.model.normalization == "rms_norm"
    assert "model.normalization" not in eager.to_dict()["taken"]["keys"]


def test_defaults_keep_to_what_a_layout_allows() -> None:
    assert filled({}, zero_stage=0)["parallelism"].keys().isdisjoint({"gradient_reduction", "overlap_parameter_gather"})
    torchtitan = {"framework": "torchtitan"}
    sharded, replicated = filled(torchtitan), filled(torchtitan, zero_stage=0)
    assert (sharded["parallelism"]["zero_stage"], sharded["parallelism"]["fp32_parameters"]) == (3, True)
    assert replicated["parallelism"]["gradient_reduction"] == "all_reduce"
    assert "fp32_parameters" not in replicated["parallelism"]
    assert sharded["model"]["loss"] == "torch"
    assert "loss" not in filled(torchtitan, tensor_parallel_size=2)["model"]
    assert filled(torchtitan, pipeline_parallel_size=2)["parallelism"]["reshard_after_forward"] is False
    assert filled({"framework": "deepspeed"}, zero_stage=3)["parallelism"]["overlap_parameter_gather"] is True


def test_a_system_without_bf16_answers_in_what_it_has() -> None:
    on_v100 = predict(of_model("llama3-8b", OPTIONS, "V100"))
    assert on_v100.run.precision == "fp16"
    assert "in fp16" in lines(on_v100)[0]


def test_the_documented_interface_and_other_tools_say_all(tmp_path: Path) -> None:
    assert predict(EXAMPLES_FOLDER / "llemma_7b_4_2_2_P.yml").loaded.taken is None
    script = ROOT / "docs" / "gallery" / "launch.sh"
    taking: dict[str, Any] = {"system": "H100", "from": str(script), "model": {"vocab_size": 128256}}
    assert predict(taking).loaded.taken is None
    recomputed = predict(write(taking, tmp_path / "c.yml"), hardware={"training.recompute": "full"})
    assert recomputed.loaded.taken is None
    assert predict(of_model(str(script), ["vocab_size=128256"], "H100")).loaded.taken is None


def test_check_compare_and_search_say_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(SILENT, tmp_path / "c.yml"))
    assert main(["check", path, "--max-step-s", "100"]) == 0
    capsys.readouterr()
    assert str(compare([path], systems=["H200"])).count(LINE) == 1
    for model in (path, "llama3-8b"):
        asked: dict[str, Any] = {"system": "H100", "global_batch_size": 256, "top": 1}
        assert len([note for note in search(model, 64, **asked).notes if note.startswith(LINE)]) == 1
        assert not [note for note in search(model, 64, framework="megatron", **asked).notes if note.startswith(LINE)]


def test_the_table_of_the_documentation_is_the_code() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    shown = [
        *(Framework.MEGATRON_LM, Framework.TORCHTITAN, Framework.DEEPSPEED, Framework.TRANSFORMERS),
        Framework.PYTORCH,
    ]
    rows = []
    for section in SECTIONS:
        usual = [defaults_of(name).section(section) for name in shown]
        for key in SECTIONS[section]:
            if any(key in keys for keys in usual):
                plain = SECTION_DEFAULTS[section].get(key, "bf16")
                values = [str("none" if (v := keys.get(key, plain)) is None else v).lower() for keys in usual]
                rows.append(f"| `{section}.{key}` | {' | '.join(values)} |")
    head = f"| key | {' | '.join(f'`{name}`' for name in shown)} |"
    assert "\n".join([head, "|---|---|---|---|---|---|", *rows]) in text
    alike = (Framework.NEMO, Framework.MEGATRON_BRIDGE)
    others: list[tuple[Framework, int | None]] = [
        (name, None) for name in Framework if name not in shown and name not in alike
    ]
    stages: list[tuple[Framework, int | None]] = [
        (name, stage) for name in (Framework.TRANSFORMERS, Framework.LIGHTNING) for stage in (2, 3)
    ]
    rows = []
    for framework, stage in sorted([*others, *stages], key=lambda pair: (pair[0], pair[1] or 0)):
        defaults = defaults_of(framework, stage)
        keys = {**defaults.section("model"), **defaults.section("parallelism")}
        keys |= defaults.section("training")
        plain = {key: value for section in SECTION_DEFAULTS.values() for key, value in section.items()} | {
            "precision": "bf16"
        }
        said = [f"`{key}: {str(value).lower()}`" for key, value in keys.items() if value != plain[key]]
        where = f"`{framework}`" + (f", `zero_stage: {stage}`" if stage else "")
        rows.append(f"| {where} | {', '.join(said)} |")
    assert "\n".join(["| framework | other than `pytorch` |", "|---|---|", *rows]) in text


@pytest.mark.parametrize(
    ("framework", "system", "attention", "kernel"),
    [
        ("transformers", "H100", "flash", "flash_2"),
        ("torchtitan", "H200", "flash", "flash_2"),
        ("deepspeed", "H100", "flash", "flash_2"),
        ("megatron-lm", "H100", "flash", None),  # Transformer Engine's, which the tables measured the like of
        ("transformers", "A100_SXM", "flash", None),  # whose own is FlashAttention 2
        ("torchtitan", "B200", "flash", None),  # cuDNN's
        ("transformers", "H100", "unfused", None),
    ],
)
def test_on_hopper_the_framework_decides_the_kernel_of_attention(
    framework: str, system: str, attention: str, kernel: str | None
) -> None:
    content: dict[str, Any] = {
        "system": system,
        "model": {"preset": "llama3-8b", "attention": attention},
        "parallelism": {"data_parallel_size": 8, "zero_stage": 3 if framework != "megatron-lm" else 1},
        "training": {**TOKENS, "framework": framework},
    }
    assert predict(content).run.attention_kernel == kernel
    left_out = {**content, "training": {**TOKENS, "framework": framework, "attention_kernel": None}}
    assert predict(left_out).run.attention_kernel is None
