"""HugeCTR's configuration: every sample is read, what cannot be read says why in one line."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.core.schema.input_kind import is_hugectr
from predictor.recommender.hugectr.reading import parse_hugectr, read_hugectr
from predictor.recommender.workload.embedding import Combiner, EmbeddingKind
from predictor.recommender.workload.layers import LAYER_TYPES, TensorShape
from predictor.recommender.workload.optimizer import OptimizerKind, UpdateType

ROOT = Path(__file__).resolve().parents[3]
COMPANION = ROOT.parent / "shared" / "spec" / "companion" / "hugectr"
SAMPLES = sorted((COMPANION / "samples").glob("*.json"))
needs_samples = pytest.mark.skipif(not SAMPLES, reason="the sample configurations are not here")


def dlrm() -> dict[str, Any]:
    """A small DLRM with every kind of clause."""
    return {
        "solver": {"gpu": [0, 1], "batchsize": 64, "mixed_precision": 1024, "input_key_type": "I32"},
        "optimizer": {"type": "SGD", "global_update": False, "sgd_hparam": {"learning_rate": 24.0, "warmup_steps": 10}},
        "layers": [
            {
                "name": "data",
                "type": "Data",
                "format": "Raw",
                "num_samples": 100,
                "slot_size_array": [10, 20],
                "label": {"top": "label", "label_dim": 1},
                "dense": {"top": "dense", "dense_dim": 3},
                "sparse": [
                    {
                        "top": "data1",
                        "type": "LocalizedSlot",
                        "max_feature_num_per_sample": 2,
                        "max_nnz": 1,
                        "slot_num": 2,
                    }
                ],
            },
            {
                "name": "embedding",
                "type": "LocalizedSlotSparseEmbeddingOneHot",
                "bottom": "data1",
                "top": "embedding",
                "sparse_embedding_hparam": {"slot_size_array": [10, 20], "embedding_vec_size": 8, "combiner": 0},
            },
            {
                "name": "fc1",
                "type": "FusedInnerProduct",
                "bottom": "dense",
                "top": "fc1",
                "fc_param": {"num_output": 8},
            },
            {"name": "interaction", "type": "Interaction", "bottom": ["fc1", "embedding"], "top": "interaction"},
            {
                "name": "fc2",
                "type": "InnerProduct",
                "bottom": "interaction",
                "top": "fc2",
                "fc_param": {"num_output": 1},
            },
            {"name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": ["fc2", "label"], "top": "loss"},
        ],
    }


@needs_samples
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: str(path.stem))
def test_sample_is_read(path: Path) -> None:
    config = read_hugectr(path)
    assert is_hugectr(config.content)
    assert config.solver is not None
    assert config.model.loss is not None
    assert config.model.shapes[config.model.loss.inputs[0]] == TensorShape(1, 1)
    for embedding in config.model.embeddings:
        slots = [slot for table in embedding.tables(8) for slot in table.slots]
        assert sorted(slots) == list(range(embedding.num_slots))


@needs_samples
def test_samples_of_the_notebooks_are_read() -> None:
    texts = [path.read_text() for path in COMPANION.glob("notebook_*.txt")]
    configurations = [json.loads(text.partition("\n")[2]) for text in texts if ".json\n" in text[:60]]
    assert len(configurations) == 3
    read = [parse_hugectr(content) for content in configurations]
    assert sum(config.inference is not None for config in read) == 1


def test_clauses_become_a_model() -> None:
    config = parse_hugectr(dlrm())
    model = config.model
    assert config.solver is not None
    assert config.solver.gpu == ((0, 1),)
    assert model.optimizer is not None
    assert (model.optimizer.kind, model.optimizer.update) == (OptimizerKind.SGD, UpdateType.LOCAL)
    (embedding,) = model.embeddings
    assert (embedding.kind, embedding.combiner) == (EmbeddingKind.ONE_HOT, Combiner.SUM)
    assert model.shapes["interaction"] == TensorShape(1, 8 + 3 + 1)
    assert model.dense_parameters == (3 * 8 + 8) + (12 + 1)


def test_dense_parameters_of_dlrm_are_the_published_ones() -> None:
    path = COMPANION / "samples" / "dlrm_fp16_64k.json"
    if not path.exists():
        pytest.skip("the sample configurations are not here")
    # 13-512-256-128 and 480-1024-1024-512-256-1, with biases.
    bottom = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128
    top = 480 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 256 + 1
    assert read_hugectr(path).model.dense_parameters == bottom + top


def changed(*path: Any, to: Any) -> dict[str, Any]:
    content = deepcopy(dlrm())
    place: Any = content
    for key in path[:-1]:
        place = place[key]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return content


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (changed("solver", "mixed_precision", to=100), "expected one of 128, 256, 512, 1024"),
        (changed("solver", "num_epochs", to=1) | {"x": 1}, "x is not a clause"),
        (changed("optimizer", "type", to="Lamb"), "optimizer: type is 'Lamb': input should be 'Adam'"),
        (
            changed("layers", 0, "slot_size_array", to=[1]),
            "slot_size_array has 1 sizes; the sparse inputs have 2 slots",
        ),
        (changed("layers", 0, "slot_size_array", to=None), "slot_size_array is missing; format Raw needs it"),
        (changed("layers", 0, "format", to="CSV"), "format is 'CSV': input should be 'Norm', 'Raw' or 'Parquet'"),
        (changed("layers", 1, "bottom", to="data2"), "bottom is data2; the data layer has data1"),
        (changed("layers", 1, "type", to="DistributedSlotSparseEmbeddingHash"), "it takes DistributedSlot"),
        (changed("layers", 2, "type", to="InnerProdct"), "Did you mean InnerProduct?"),
        (changed("layers", 2, "fc_param", to={"num_outputs": 3}), "Did you mean fc_param.num_output?"),
        (changed("layers", 2, "fc_param", to={}), "fc_param.num_output is missing"),
        (changed("layers", 2, "fc_param", to={"num_output": 1.5}), "num_output is 1.5; expected a whole number"),
        (changed("layers", 2, "bottom", to="dens"), "Did you mean dense?"),
        (changed("layers", 2, "fc_param", to={"num_output": 7}), "fc1 has 7 columns, embeddings 8"),
        (changed("layers", 3, "bottom", to=["fc1"]), "bottom names 1 tensors; expected 2"),
        (changed("layers", 5, to={"name": "s", "type": "Sigmoid", "bottom": "fc2", "top": "s"}), "no layer is a loss"),
    ],
)
def test_bad_configuration_says_what_is_wrong(content: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_hugectr(content, "model.json")
    message = str(raised.value)
    assert message.startswith("model.json: ")
    assert told in message
    assert "\n" not in message


def test_missing_clauses_are_named() -> None:
    for clause in ("optimizer", "layers"):
        content = dlrm()
        del content[clause]
        with pytest.raises(MissingKeyError, match=f"{clause} is missing"):
            parse_hugectr(content)


def test_embedding_behind_a_dense_layer_is_refused() -> None:
    content = dlrm()
    content["layers"][1], content["layers"][2] = content["layers"][2], content["layers"][1]
    with pytest.raises(ConfigError, match="embeddings must precede dense layers"):
        parse_hugectr(content)


def test_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"solver": {}, "solver": {}}')
    with pytest.raises(ConfigError, match="solver is given twice"):
        read_hugectr(path)


@pytest.mark.parametrize("text", ["", "[1", "[]", '"a"', "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")])
def test_what_is_no_configuration_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        read_hugectr(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_layer_type_has_its_name() -> None:
    assert set(LAYER_TYPES) == {
        "Add", "BatchNorm", "BinaryCrossEntropyLoss", "Cast", "Concat", "CrossEntropyLoss", "DotProduct", "Dropout",
        "ELU", "FmOrder2", "FusedInnerProduct", "InnerProduct", "Interaction", "MultiCross", "MultiCrossEntropyLoss",
        "WeightMultiply", "ReduceSum", "ReLU", "Reshape", "Sigmoid", "Slice",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("hotness", "said"),
    [
        ({"dta1": [1.0]}, "prediction.hotness names dta1, which is no sparse input. Did you mean data1?"),
        ({"data1": [1.0, 1.5]}, "prediction.hotness.data1 holds 1.5; more than max_nnz of data1, 1"),
        ({"data1": [0.0, 1.0]}, "prediction.hotness.data1 holds 0.0; expected keys per sample and slot"),
        ({"data1": [-1.0]}, "prediction.hotness.data1 holds -1.0; expected keys per sample and slot"),
        ({"data1": [float("nan")]}, "finite number"),
        ({"data1": [1e400]}, "finite number"),
        ({"data1": []}, "prediction.hotness.data1 has 0 values; data1 has 2 slots"),
    ],
)
def test_hotness_is_checked(hotness: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_hugectr(dlrm() | {"prediction": {"hotness": hotness}})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_hotness_of_all_slots_is_at_most_the_keys_of_a_sample() -> None:
    content = dlrm()
    del content["layers"][0]["sparse"][0]["max_nnz"]
    with pytest.raises(
        ConfigError, match=r"sums up to 2\.5 over 2 slots; more than max_feature_num_per_sample of data1"
    ):
        parse_hugectr(content | {"prediction": {"hotness": {"data1": [1.0, 1.5]}}})


HUGE = 10**30


def _set(content: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    inner: Any = content
    for key in path[:-1]:
        inner = inner[key] if isinstance(inner, list) else inner.setdefault(key, {})
    inner[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("layers", 2, "type"), ["InnerProduct"], "layer fc1: type is ['InnerProduct']; expected the name of a type"),
        (("layers", 2, "type"), {"a": 1}, "layer fc1: type is {'a': 1}; expected the name of a type"),
        (("layers", 0, "sparse", 0, "slot_num"), HUGE, "taken for a slip"),
        (("layers", 2, "fc_param", "num_output"), HUGE, "taken for a slip"),
        (("layers", 1, "sparse_embedding_hparam", "embedding_vec_size"), HUGE, "taken for a slip"),
        (("layers", 1, "sparse_embedding_hparam", "max_vocabulary_size_per_gpu"), HUGE, "taken for a slip"),
        (("layers", 0, "slot_size_array"), [HUGE, 1], "taken for a slip"),
        (("layers", 0, "dense", "dense_dim"), HUGE, "taken for a slip"),
        (("prediction", "num_gpus"), HUGE, "taken for a slip"),
        (("prediction", "batch_size"), HUGE, "taken for a slip"),
        (("prediction", "key_exponent"), float("nan"), "finite number"),
        (("prediction", "key_exponent"), float("inf"), "finite number"),
        (("prediction", "cached_share"), float("nan"), "finite number"),
        (("optimizer", "sgd_hparam", "learning_rate"), float("inf"), "finite number"),
    ],
)
def test_slips_are_refused_in_a_line(path: tuple[Any, ...], value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_hugectr(_set(dlrm(), *path, value=value))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [HUGE, 10**400])
def test_cross_layers_beyond_reason_and_numbers_beyond_floats_are_refused(value: int) -> None:
    cross = {"name": "cross", "type": "MultiCross", "bottom": "dense", "top": "x", "mc_param": {"num_layers": value}}
    norm = {"name": "bn", "type": "BatchNorm", "bottom": "dense", "top": "x", "bn_param": {"factor": 10**400}}
    for layer, said in ((cross, "taken for a slip"), (norm, "finite number")):
        content = dlrm()
        content["layers"].insert(2, layer)
        with pytest.raises(ConfigError, match=said):
            parse_hugectr(content)


def test_a_number_of_more_digits_than_python_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "digits.json"
    path.write_text('{"layers": ' + "1" * 5000 + "}")
    with pytest.raises(ConfigError, match=r"digits\.json: Exceeds the limit"):
        read_hugectr(path)


def test_an_older_name_of_evaluation_changes_no_prediction() -> None:
    """Samples of the releases of 2020 have eval_batches, which training refuses as HugeCTR does."""
    assert parse_hugectr(changed("solver", "eval_batches", to=60)).model == parse_hugectr(dlrm()).model
