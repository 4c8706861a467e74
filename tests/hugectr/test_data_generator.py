"""The generator: keys of the asked law, labels that can be learned, files where the configuration looks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from hugectr.__main__ import main
from hugectr.data.generator import Amount, generate
from hugectr.data.keyset import keys_of, read_keyset
from hugectr.data.readers import make_reader
from hugectr.data.sample_kind import data_of
from hugectr.data.samples import Samples, joined
from hugectr.data.sources import open_source
from hugectr.data.synthetic import HEAD, KeySampler, ranking_auc
from hugectr.exceptions import HugeCtrError
from predictor.recommender.hugectr.reading import HugeCtrConfig, parse_hugectr
from predictor.recommender.hugectr.sections import Data
from predictor.recommender.workload.keys import TAILS, KeyDistribution

SMALL = Amount(files=4, samples=500, eval_files=2)


def content(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return a configuration of one slot beside three, whose data lie in a folder."""
    data = {
        "type": "Data", "source": str(folder / "list.txt"), "eval_source": str(folder / "list_test.txt"),
        "check": "Sum", "label": {"label_dim": 1}, "dense": {"dense_dim": 2},
        "sparse": [
            {"top": name, "type": "DistributedSlot", "slot_num": slots, "max_feature_num_per_sample": 12}
            for name, slots in (("wide", 1), ("deep", 3))
        ],
    }  # fmt: skip
    embeddings = [
        {
            "name": f"{name}_table", "type": "DistributedSlotSparseEmbeddingHash", "bottom": name,
            "top": f"{name}_rows",
            "sparse_embedding_hparam": {"max_vocabulary_size_per_gpu": 1000, "embedding_vec_size": 4, "combiner": 0},
        }
        for name in ("wide", "deep")
    ]  # fmt: skip
    dense = [
        {"name": "flat", "type": "Reshape", "bottom": "deep_rows", "top": "flat", "leading_dim": 12},
        {"name": "fc", "type": "InnerProduct", "bottom": "flat", "top": "fc", "fc_param": {"num_output": 1}},
        {"name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": ["fc", "label"], "top": "loss"},
    ]
    return {"optimizer": {"type": "SGD"}, "layers": [data | changes, *embeddings, *dense]}


def config(folder: Path, **changes: Any) -> HugeCtrConfig:
    return parse_hugectr(content(folder, **changes))


def all_samples(data: Data, source: str) -> Samples:
    files = [open_file() for open_file in open_source(data, source, is_64_bit=data.format == "Parquet").files]
    return joined([file.read(0, file.num_samples) for file in files])


@pytest.mark.parametrize("exponent", [0.0, 0.7, *TAILS.values()])
@pytest.mark.parametrize("size", [1, 10, 3 * HEAD])
def test_keys_follow_their_law(exponent: float, size: int) -> None:
    num_draws = 40_000
    keys = KeySampler(size, exponent).draw(np.random.default_rng(0), num_draws)
    shares = np.arange(1, size + 1) ** -exponent
    shares /= shares.sum()
    assert keys.min() >= 0
    assert keys.max() < size
    # Eight ranges of keys of about equal probability, each within five standard errors of its expected count.
    ranges = np.unique(np.searchsorted(np.cumsum(shares), np.arange(8) / 8))
    expected = np.add.reduceat(shares, ranges) * num_draws
    counts = np.histogram(keys, [*ranges, size])[0]
    assert np.abs(counts - expected).max() <= 5 * expected.max() ** 0.5
    # The law that predictions assume, exact for the first keys and in ranges beyond: to its stated grain.
    distinct = KeyDistribution(exponent).distinct(num_draws, size)
    assert len(np.unique(keys)) == pytest.approx(distinct, rel=0.03, abs=5)


@pytest.mark.parametrize(("kind", "max_nnz"), [("Norm", 1), ("Norm", 3), ("Raw", 1), ("Parquet", 1)])
def test_files_are_where_the_configuration_looks_for_them(tmp_path: Path, kind: str, max_nnz: int) -> None:
    changes: dict[str, Any] = {} if kind == "Norm" else {"format": kind, "slot_size_array": [100] * 4}
    if kind == "Raw":
        changes |= {"num_samples": 2000, "eval_num_samples": 1000}
    subject = config(tmp_path, **changes)
    folder = None if kind == "Raw" else tmp_path / "data"
    vocabulary = 400 if kind == "Norm" else None
    written = generate(subject, folder, vocabulary, max_nnz, amount=SMALL, long_tail="long")
    assert (written.num_samples, written.num_eval_samples) == (2000, 1000)
    for source, count in ((subject.data.source, 2000), (subject.data.eval_source, 1000)):
        samples = all_samples(subject.data, source)
        assert samples.label.shape == (count, 1)
        assert samples.dense.shape == (count, 2)
        assert samples.lengths.min() == 1
        assert samples.lengths.max() == max_nnz
        ends = np.cumsum(samples.lengths.sum(axis=1))
        for slot, keys in enumerate(np.split(samples.keys, ends[:-1])):
            start = 100 * slot if kind == "Norm" else 0
            assert start <= keys.min()
            assert keys.max() < start + 100


def test_norm_keys_of_stated_sizes_are_read_back(tmp_path: Path) -> None:
    sizes = (3, 40, 2, 60)
    subject = config(tmp_path, slot_size_array=sizes)
    generate(subject, tmp_path, None, 2, amount=Amount(files=1, samples=400, eval_files=1))
    samples = all_samples(subject.data, subject.data.source)
    ends = np.cumsum(samples.lengths.sum(axis=1))
    assert tuple(keys.max() + 1 for keys in np.split(samples.keys, ends[:-1])) == sizes
    written = keys_of(subject.data, subject.data.source, is_64_bit=False)
    assert (written["wide"].max(), written["deep"].min(), written["deep"].max()) == (2, 3, 104)


def test_sizes_that_embedding_layers_state_are_those_of_the_data(tmp_path: Path) -> None:
    stated = content(tmp_path)
    for layer, sizes in zip(stated["layers"][1:3], ([5], [6, 7, 8]), strict=True):
        layer["sparse_embedding_hparam"] = {"slot_size_array": sizes, "embedding_vec_size": 4, "combiner": 0}
    assert data_of(parse_hugectr(stated)).slot_size_array == (5, 6, 7, 8)
    assert data_of(config(tmp_path)).slot_size_array == ()


def test_sizes_that_some_embedding_layers_state_are_refused(tmp_path: Path) -> None:
    stated = content(tmp_path)
    wide, deep = stated["layers"][1:3]
    deep["sparse_embedding_hparam"]["slot_size_array"] = [6, 7, 8]
    with pytest.raises(HugeCtrError, match="layer wide_table has no slot_size_array, layer deep_table has"):
        data_of(parse_hugectr(stated))
    wide |= {"bottom": "deep", "sparse_embedding_hparam": deep["sparse_embedding_hparam"]}
    with pytest.raises(HugeCtrError, match="no embedding layer states the slot_size_array of wide"):
        data_of(parse_hugectr(stated))
    wide["sparse_embedding_hparam"] = deep["sparse_embedding_hparam"] | {"slot_size_array": [6, 7, 9]}
    with pytest.raises(HugeCtrError, match="layers wide_table and deep_table read deep and differ in slot_size_array"):
        data_of(parse_hugectr(stated))


def test_same_seed_writes_the_same_and_another_does_not(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        generate(config(tmp_path / name), tmp_path / name, 400, amount=SMALL, seed=seed)
        texts.append([(tmp_path / name / part / "gen_0.data").read_bytes() for part in ("train", "val")])
    assert texts[0] == texts[1]
    assert not {*texts[0]} & {*texts[2]}
    assert texts[0][0] != texts[0][1]


@pytest.mark.parametrize("long_tail", [None, "long"])
def test_planted_signal_can_be_learned(tmp_path: Path, long_tail: str | None) -> None:
    subject = config(tmp_path)
    amount = Amount(files=2, samples=10_000, eval_files=1)
    written = generate(subject, tmp_path, 80, amount=amount, long_tail=long_tail)
    assert 0.78 < written.best_auc < 0.88

    def features(samples: Samples) -> csr_matrix:
        count = len(samples.label)
        hot = csr_matrix((np.ones(4 * count), (np.tile(np.arange(count), 4), samples.keys)), (count, 80))
        return hstack([hot, csr_matrix(samples.dense)])

    train, test = (all_samples(subject.data, name) for name in (subject.data.source, subject.data.eval_source))
    model = LogisticRegression(max_iter=200).fit(features(train), train.label[:, 0])
    reached = roc_auc_score(test.label[:, 0], model.decision_function(features(test)))
    assert reached == pytest.approx(written.best_auc, abs=0.01)


def test_ranking_auc_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.random(300), rng.integers(0, 2, 300).astype(np.float32)
    assert ranking_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert ranking_auc(scores, np.ones(300, np.float32)) == 0.5


@pytest.mark.parametrize("per_table", [False, True])
def test_lists_have_keysets_and_an_evaluation_list(tmp_path: Path, per_table: bool) -> None:
    subject = config(tmp_path)
    amount = Amount(files=4, samples=50, eval_files=1, lists=2, per_table=per_table)
    written = generate(subject, tmp_path, 400, amount=amount)
    assert [path.name for path in (*written.sources, written.eval_source)] == [f"file_list.{i}.txt" for i in range(3)]
    names = [f"file_list.{i}{part}.keyset" for i in range(2) for part in ((".wide", ".deep") if per_table else ("",))]
    assert [path.name for path in written.keysets] == names
    every = keys_of(subject.data, str(written.sources[1]), is_64_bit=False)
    assert read_keyset(written.keysets[-1], is_64_bit=False)[-1] == every["deep"].max()
    for source, count in zip((*written.sources, written.eval_source), (100, 100, 50), strict=True):
        reader = make_reader(
            subject.data, source=str(source), batch_size=count, rank=0, num_ranks=1, i64_input_key=False, repeat=False,
            num_samples=None,
        )  # fmt: skip
        batch = reader.next()
        assert batch is not None
        assert batch.num_samples == count
        reader.close()


@pytest.mark.parametrize(
    ("changes", "vocabulary", "max_nnz", "options", "message"),
    [
        ({}, None, 1, {}, "vocabulary is missing"),
        ({}, 3, 1, {}, "vocabulary is 3; 4 slots need a key each"),
        ({}, 1400, 1, {}, r"1050 keys in the slots of deep; .* has room for 1000 on 1 GPUs"),
        ({}, 400, 0, {}, "max_nnz is 0; expected 1 or more"),
        ({}, 400, 5, {}, r"3 slots of deep hold up to 15 keys; max_feature_num_per_sample is 12"),
        ({}, 400, 1, {"long_tail": "thick"}, "long_tail is thick; expected one of long, medium, short"),
        ({}, 400, 1, {"amount": Amount(files=3, lists=2)}, "lists is 2; it must divide the 3 files"),
        ({}, 400, 1, {"amount": Amount(samples=0)}, "samples is 0; expected a number above 0"),
        ({}, 400, 1, {"amount": Amount(samples=10**12)}, r"the data take .* GB; .* free"),
        ({"source": ""}, 400, 1, {"amount": SMALL}, "source of the data layer is missing"),
        ({"slot_size_array": [9] * 4}, 400, 1, {}, "vocabulary is 400; slot_size_array of the configuration has 36"),
        ({"format": "Parquet", "slot_size_array": [9] * 4}, None, 2, {}, "Norm data alone"),
        ({"format": "Raw", "slot_size_array": [9] * 4}, None, 1, {}, "num_samples and eval_num_samples"),
        ({"format": "Raw", "slot_size_array": [9] * 4}, None, 1, {"i64_input_key": True}, "Raw data have 32-bit keys"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    tmp_path: Path, changes: dict[str, Any], vocabulary: int | None, max_nnz: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(HugeCtrError, match=message):
        generate(config(tmp_path, **changes), tmp_path, vocabulary, max_nnz, **options)


def test_command_generates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content(tmp_path)))
    arguments = ["generate", str(path), str(tmp_path / "data"), "400", "2", "--files=2", "--samples=100", "--i64"]
    assert main([*arguments, "--long-tail=short", "--seed=3"]) == 0
    printed = capsys.readouterr().out
    assert f"200 samples for training: {tmp_path / 'list.txt'}" in printed
    assert "best AUC" in printed
    assert main(["generate", str(path), str(tmp_path / "data")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hugectr: vocabulary is missing")
    assert error.count("\n") == 1
    assert main(["create"]) == 2
    assert "create is not a command; there are: generate" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "  generate   write a synthetic data set" in capsys.readouterr().out


def test_every_sample_configuration_can_be_generated(root: Path, tmp_path: Path) -> None:
    samples = root.parent / "shared" / "spec" / "companion" / "hugectr" / "samples"
    if not samples.is_dir():
        pytest.skip(f"no sample configurations in {samples}")
    for path in sorted(samples.glob("*.json")):
        sample = json.loads(path.read_text())
        data = sample["layers"][0]
        data |= {"source": str(tmp_path / "list.txt"), "eval_source": str(tmp_path / "list_test.txt")}
        if data.get("format") == "Raw":
            data |= {"num_samples": 20, "eval_num_samples": 10}
        subject = parse_hugectr(sample)
        norm_without_sizes = subject.data.format == "Norm" and not any(
            embedding.slot_rows for embedding in subject.model.embeddings
        )
        folder = None if subject.data.format == "Raw" else tmp_path
        amount = Amount(files=1, samples=20, eval_files=1)
        generate(subject, folder, 2000 if norm_without_sizes else None, amount=amount)
        read = all_samples(subject.data, subject.data.source)
        assert read.label.shape == (20, 1), path.name
