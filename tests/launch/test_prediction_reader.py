"""An experiment becomes a configuration of the predictor: sizes, layout, batch, duration, and what it cannot say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from model_training_framework.config import ExperimentConfig
from model_training_framework.config.nested import with_value
from model_training_framework.config.schema import dotted_keys
from model_training_framework.prediction.question import KEPT
from predictor import predict
from predictor.__main__ import main
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.core.schema.input_kind import EXPERIMENT_FORMAT
from predictor.formats import detect, experiment, read_any
from predictor.formats.experiment import gpus_per_node, num_steps, translate
from predictor.formats.known_keys import known_keys
from tests.launch.examples import COMPLETE, transformer

HERE = Path()
FOR_STEPS = {"training.epochs", "training.max_steps", "data.num_samples", "prediction.price_per_gpu_hour"}
USED = (
    {f"{section}.{key}" for section, keys in KEPT.items() for key in keys} | FOR_STEPS | {"command", "slurm.launcher"}
)


def translated(content: dict[str, Any]) -> dict[str, Any]:
    return translate(content, "x.yaml", HERE).content


def notes(content: dict[str, Any]) -> str:
    return "\n".join(translate(content, "x.yaml", HERE).notes)


def test_sizes_layout_and_batch_are_translated() -> None:
    content = translated(
        transformer(
            model={"dropout": 0.1, "num_key_value_heads": 4},
            training={"tensor_parallel_size": 2, "gradient_accumulation_steps": 8, "zero_stage": 3},
            slurm={"nodes": 3},
        )
    )
    assert content["system"] == "Perlmutter"
    assert content["model"] == {
        "hidden_size": 2048,
        "num_layers": 16,
        "num_attention_heads": 16,
        "vocab_size": 50257,
        "num_key_value_heads": 4,
        "sequence_length": 1024,
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
    }
    layout = content["parallelism"]
    sizes = [layout[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline", "data")]
    assert (sizes, layout["zero_stage"], layout["gpus_per_node"]) == ([2, 1, 6], 3, 4)
    assert content["training"] == {"micro_batch_size": 4, "num_micro_batches": 8, "precision": "bf16"}
    assert content["budget"] == {"price_per_gpu_hour": 2.0, "train_tokens": 1000 * 4 * 8 * 6 * 1024}


@pytest.mark.parametrize("stage", range(4))
def test_every_zero_stage_can_be_predicted_and_more_sharding_takes_less_memory(stage: int) -> None:
    memory = [predict(transformer(training={"zero_stage": each})).memory_gib for each in (stage, min(stage + 1, 3))]
    assert memory[1] <= memory[0]


def test_without_slurm_one_gpu_is_predicted() -> None:
    content = transformer()
    del content["slurm"]
    layout = translated(content)["parallelism"]
    assert (layout["data_parallel_size"], layout["gpus_per_node"]) == (1, 1)


@pytest.mark.parametrize(
    ("training", "data", "steps"),
    [
        ({"max_steps": 7}, {}, 7),
        ({"max_steps": None}, {}, None),
        ({"max_steps": None, "epochs": 3}, {"num_samples": 1600}, 300),
        ({"max_steps": None, "epochs": 3}, {"num_samples": 1601}, 303),
        ({"max_steps": 50, "epochs": 3}, {"num_samples": 1600}, 50),
        ({"max_steps": 500, "epochs": 3}, {"num_samples": 1600}, 300),
        ({"max_steps": None, "epochs": 3, "gradient_accumulation_steps": 10}, {"num_samples": 1600}, 30),
    ],
)
def test_steps_come_from_a_limit_or_from_epochs_and_samples(
    training: dict[str, Any], data: dict[str, Any], steps: int | None
) -> None:
    content = transformer(training=training, data=data)  # 4 samples on each of 4 replicas
    assert num_steps(content) == num_steps(ExperimentConfig.from_dict(content).to_dict()) == steps
    assert ("number of steps is not known" in notes(content)) == (steps is None)


def test_a_preset_by_the_model_s_name_needs_no_sizes() -> None:
    model = {"name": "llama3-8b", "hidden_size": None, "num_layers": None, "num_heads": None, "vocab_size": None}
    assert translated(transformer(model=model))["model"] == {"preset": "llama3-8b", "sequence_length": 1024}


def test_only_the_usual_decoder_without_a_preset_gets_a_note() -> None:
    assert "Of the model only sizes are known" in notes(transformer())
    assert "a vocabulary of 50,257" not in notes(transformer())
    assert "a vocabulary of 50,257" in notes(transformer(model={"vocab_size": None}))
    assert "Of the model only sizes" not in notes(transformer(model={"name": "gpt2", **dict.fromkeys(SIZES)}))


SIZES = ("hidden_size", "num_layers", "num_heads", "vocab_size")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"model": {"num_heads": None}},
            r"x\.yaml: model 'transformer' cannot be predicted without model\.num_heads\. ",
        ),
        (
            {"model": {"name": "resnet50", **dict.fromkeys(SIZES)}},
            r"without model\.hidden_size, model\.num_layers, model",
        ),
        ({"model": {"name": "lama3-8b", **dict.fromkeys(SIZES)}}, r"Did you mean llama3-8b\?"),
        ({"training": {"sequence_length": None}}, r"training\.sequence_length is missing"),
        ({"data": {"sequence_length": 5}}, r"training\.sequence_length is 1024; data\.sequence_length is 5; give one"),
        ({"training": {"tensor_parallel_size": 3}}, r"training\.tensor_parallel_size is 3; .* must divide .*, 4"),
        ({"training": {"batch_size": "x"}}, r"training\.batch_size is 'x'; expected a whole number"),
        ({"training": {"batch_sise": 3}}, r"training\.batch_sise is 3; .*Did you mean batch_size\?"),
        ({"trainig": {}}, r"trainig is not a key of an experiment\. Did you mean training\?"),
        ({"prediction": {"config": "none.yaml"}}, r"prediction\.config is 'none\.yaml'; there is no such file in"),
        ({"prediction": {"config": [1]}}, r"prediction\.config is \[1\]; expected a configuration file"),
    ],
)
def test_what_cannot_be_predicted_has_a_reason(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        translated(transformer(**changes))


def test_the_configuration_of_the_prediction_is_on_top_and_says_so() -> None:
    over = {"model": {"activation": "swiglu"}, "training": {"recompute": "full", "micro_batch_size": 2}}
    content = transformer(prediction={"config": over})
    whole = translated(content)
    assert (whole["model"]["activation"], whole["model"]["hidden_size"]) == ("swiglu", 2048)
    assert whole["training"] == {
        "micro_batch_size": 2,
        "num_micro_batches": 1,
        "precision": "bf16",
        "recompute": "full",
    }
    said = "prediction.config counts where the experiment says something else: training.micro_batch_size 2 (not 4)"
    assert said in notes(content)


def test_a_batch_of_the_prediction_s_own_takes_the_place_of_the_accumulation() -> None:
    content = transformer(prediction={"config": {"training": {"global_batch_size": 64}}})
    assert predict(content).run.num_micro_batches == 64 // (4 * 4)


def test_a_model_can_come_from_the_prediction_s_configuration_alone(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("model: llama3.2-1b\n")
    content = transformer(model={"name": "mine", **dict.fromkeys(SIZES)}, prediction={"config": "own.yaml"})
    found = translate(content, "x.yaml", tmp_path).content
    assert found["model"] == {"preset": "llama3.2-1b", "sequence_length": 1024}


def test_an_optimizer_that_is_not_adam_and_gpus_without_a_process_get_a_note() -> None:
    assert "optimizer.name lion: predicted with the step and the states of AdamW" in notes(
        transformer(optimizer={"name": "lion"})
    )
    assert "optimizer" not in notes(transformer(optimizer={"name": "AdamW"}))
    assert "slurm.gres asks for 8 GPUs per node, which 4 processes share" in notes(transformer(slurm={"gres": "gpu:8"}))


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:a100:2", 2),
        ("gpu:a100", 1),
        ("gpu:a100:2,nvme:1", 2),
        ("nvme:1,gpu:2", 2),
        ("gpu:a100:1,gpu:h100:3", 4),
        ("gpu:2(S:0-1)", 2),
        ("gres/gpu:3", 3),
        ("gres/gpu=3", 3),
        ("nvme:1", None),
        ("gpus:4", None),
        (None, None),
    ],
)
def test_gpus_are_counted_as_slurm_counts_them(gres: str | None, gpus: int | None) -> None:
    assert gpus_per_node(gres) == gpus


def test_every_key_of_an_experiment_is_used_or_known_to_change_nothing() -> None:
    known = known_keys(experiment.KEYS)
    for key in dotted_keys():
        assert (key in USED) != known.is_irrelevant(key), key
        if key not in USED:
            translated(with_value(transformer(), key, 1))
    named = {key for key in known.irrelevant if key not in dotted_keys()}
    assert not named, f"keys/experiment.yaml names what no experiment has: {named}"


def test_what_is_used_changes_the_configuration() -> None:
    base = transformer(data={"num_samples": 1600}, slurm={"gres": "gpu:8"})
    values: dict[str, Any] = {
        "command": "torchrun train.py",
        "data.num_samples": 160,
        "model.dropout": 0.5,
        "optimizer.name": "lion",
        "prediction.config": {"training": {"recompute": "full"}},
        "prediction.system": "Vista",
        "slurm.gres": "gpu:1",
        "slurm.launcher": "torchrun",
        "slurm.nodes": 2,
        "training.gradient_accumulation_steps": 2,
        "training.pipeline_parallel_size": 2,
        "training.precision": "fp16",
        "training.tensor_parallel_size": 2,
    }
    for key in sorted(USED - {"model.name", "data.sequence_length"}):
        changed = with_value(base, key, values.get(key, 1))
        assert translate(changed, "x", HERE) != translate(base, "x", HERE), key


@pytest.mark.parametrize("name", ["experiment.yaml", "experiment.json", "unnamed"])
def test_the_predictor_takes_an_experiment_like_a_configuration(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    content = ExperimentConfig.from_dict(transformer()).to_dict()
    path.write_text(json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(content))
    assert detect(path) == EXPERIMENT_FORMAT
    assert read_any(path).content == translated(content)
    assert main([str(path)]) == 0
    output = capsys.readouterr().out
    assert "1,000 steps in" in output
    assert "Of the model only sizes are known" in " ".join(output.split())
    start = tmp_path / "from.yaml"
    start.write_text(f"from: {name}\ntraining: {{recompute: full}}\n")
    assert predict(start).step.us > predict(path).step.us == predict(content).step.us


def test_an_experiment_is_predicted_on_another_system_and_other_hardware() -> None:
    prediction = predict(transformer(slurm={"ntasks_per_node": 1}))
    assert prediction.on("H100").step.us < prediction.step.us
    assert prediction.on(hardware={"memory_gib": 10}).fits is False


def test_the_complete_configuration_of_the_specification_lacks_only_a_length_and_a_system(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(COMPLETE)
    with pytest.raises(ConfigError, match=r"training\.sequence_length is missing"):
        predict(path)
    path.write_text(COMPLETE.replace("  epochs: 100", "  epochs: 100\n  sequence_length: 128"))
    with pytest.raises(MissingKeyError, match=r"prediction\.system is missing; name a published system: .*Perlmutter"):
        predict(path)
    path.write_text(path.read_text().replace("  epochs: 100", "  epochs: 100\n  precision: bf16"))
    path.write_text(path.read_text() + "prediction: {system: Perlmutter}\n")
    assert predict(path).step.us > 0


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["model", "from", "training", "system", "x"]), st.integers() | st.text(max_size=2)),
)
KEYS = sorted({*dotted_keys(), "model", "training", "slurm", "data", "prediction", "zz", "model.zz"})


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KEYS), ANYTHING)
def test_whatever_an_unchecked_experiment_says_is_predicted_or_one_line(key: str, value: Any) -> None:
    content = with_value(transformer(), key, value)
    try:
        step = predict(content).step
    except (ConfigError, MissingKeyError, FileNotFoundError) as error:
        line = str(error)
    else:
        line = f"{step.us}"
        assert step.us > 0
    assert len(line.splitlines()) == 1
