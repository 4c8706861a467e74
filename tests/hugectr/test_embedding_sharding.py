"""Every plan on two ranks trains to the losses of one rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hugectr.data.batch import SparseInput
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from hugectr.exceptions import DataError, EmbeddingOverflowError
from predictor.core.base.errors import ConfigError
from predictor.recommender.workload.embedding import Combiner, EmbeddingLayer
from predictor.recommender.workload.optimizer import OptimizerKind, UpdateType
from predictor.recommender.workload.plan import Sharding, default_plan
from tests.hugectr.embedding_made import (
    CPU,
    STEPS,
    Case,
    batch,
    hashed,
    localized,
    on_ranks,
    optimizer,
    plan_of,
    recommender,
    single_rank,
    train_step,
)

SIZES = (40, 41, 45)
SGD = optimizer(OptimizerKind.SGD, UpdateType.LOCAL)


def _cases() -> dict[str, Case]:
    cases = {}
    for sharding in Sharding:
        for kind in OptimizerKind:
            for update in UpdateType:
                model = recommender(optimizer(kind, update), hashed(combiner=Combiner.MEAN), localized(SIZES))
                cases[f"{sharding}-{kind}-{update}"] = Case(model, sharding)
        both = recommender(SGD, hashed(), hashed("wide", width=8), localized(rows=300, combiner=Combiner.MEAN))
        cases[f"{sharding}-layers"] = Case(both, sharding)
    many = recommender(optimizer(OptimizerKind.ADAM, UpdateType.LOCAL), hashed(), localized(SIZES), hashed("wide"))
    cases["mixed-layers"] = Case(many, None)
    cases["mixed-slots"] = Case(
        recommender(SGD, localized(SIZES), hashed(), hashed("wide", combiner=Combiner.MEAN)), None
    )
    cases["row_wise-widths"] = Case(recommender(SGD, hashed(width=4), hashed("wide", width=1)), Sharding.ROW_WISE)
    return cases


CASES = _cases()


def _train_all(rank: int, ranks: int, folder: Path) -> None:
    losses = {name: case.losses(rank, ranks) for name, case in CASES.items()}
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(_train_all, folder)
    losses: dict[str, list[float]] = json.loads((folder / "losses.json").read_text())
    return losses


@pytest.mark.parametrize("name", list(CASES))
def test_two_ranks_train_to_the_losses_of_one(name: str, on_two: dict[str, list[float]]) -> None:
    case = CASES[name]
    with single_rank():
        alone = Case(case.model, None).losses()
    assert on_two[name] == pytest.approx(alone, rel=2e-6)
    assert len(set(alone)) == STEPS


def test_training_lowers_the_loss_on_the_same_batch() -> None:
    with single_rank():
        embeddings = Case(recommender(SGD, hashed()), None).embeddings(1)
        first = train_step(embeddings, 1)
        for _ in range(20):
            last = train_step(embeddings, 1)
    assert last < 0.8 * first


def test_pooling_is_that_of_a_plain_embedding_bag() -> None:
    layer = hashed(combiner=Combiner.MEAN)
    with single_rank():
        embeddings = Case(recommender(SGD, layer), None).embeddings(1)
        given = batch(layer, 1)
        pooled = embeddings({layer.input: given}).wait()[layer.output]
        rows = embeddings.stores[0].tables[0]
        keys = rows.keys().tolist()
        weights = embeddings.stores[0].table.weights[rows.used]
    numbers = torch.tensor([keys.index(key) for key in given.keys.tolist()])
    offsets = torch.cat([torch.zeros(1), given.lengths.cumsum(0)])[:-1].long()
    plain = torch.nn.functional.embedding_bag(numbers, weights, offsets, mode="mean")
    torch.testing.assert_close(pooled, plain.view(layer.num_slots, -1, layer.width).transpose(0, 1))


def test_rows_are_initialised_alike_whatever_came_before() -> None:
    layer = hashed()
    with single_rank():
        forward, backward = (Case(recommender(SGD, layer), None).embeddings(1) for _ in range(2))
        with torch.no_grad():
            for embeddings, steps in ((forward, (1, 2)), (backward, (2, 1))):
                for step in steps:
                    pooled = embeddings({layer.input: batch(layer, step)}).wait()
                if embeddings is forward:
                    of_second = pooled[layer.output]
            again = backward({layer.input: batch(layer, 2)}).wait()[layer.output]
    torch.testing.assert_close(again, of_second, rtol=0, atol=0)


def test_keys_that_training_never_met_look_up_zeros_in_evaluation() -> None:
    layer = hashed()
    with single_rank():
        embeddings = Case(recommender(SGD, layer), None).embeddings(1)
        embeddings.eval()
        pooled = embeddings({layer.input: batch(layer, 1)}).wait()[layer.output]
        assert not pooled.any()
        embeddings.train()
        assert embeddings({layer.input: batch(layer, 1)}).wait()[layer.output].any()


def test_an_overflow_names_the_table_and_its_layer() -> None:
    with single_rank():
        embeddings = Case(recommender(SGD, hashed(rows=10)), None).embeddings(1)
        train_step(embeddings, 1)
        with pytest.raises(EmbeddingOverflowError, match="max_vocabulary_size_per_gpu of hashed is 10"):
            embeddings.check_overflow()


def test_keys_without_room_look_up_zeros_and_stay_untrained() -> None:
    layer = hashed(rows=10)
    with single_rank():
        embeddings = Case(recommender(SGD, layer), None).embeddings(1)
        train_step(embeddings, 1)
        assert not embeddings.stores[0].table.weights[-1].any()
        assert len(embeddings.stores[0].tables[0].keys()) == 10


def _one_hot(layer: EmbeddingLayer, keys_per_slot: int = 1) -> SparseInput:
    random = torch.Generator().manual_seed(1)
    keys = [torch.randint(0, rows, (8 * keys_per_slot,), generator=random) for rows in layer.slot_rows]
    return SparseInput(torch.cat(keys), torch.full((8 * layer.num_slots,), keys_per_slot, dtype=torch.int32))


@pytest.mark.parametrize("keys_per_slot", [1, 3])
def test_even_batches_are_pooled_as_uneven_ones(keys_per_slot: int) -> None:
    layer = localized(SIZES)
    with single_rank():
        embeddings = Case(recommender(SGD, layer), None).embeddings(1)
        given = _one_hot(layer, keys_per_slot)
        pooled = embeddings({layer.input: given}).wait()[layer.output]
        # One more sample without keys makes the batch uneven.
        lengths = torch.nn.functional.pad(given.lengths.view(3, 8), (0, 1)).flatten()
        uneven = embeddings({layer.input: SparseInput(given.keys, lengths)}).wait()[layer.output]
        weights = embeddings.stores[0].table.weights
    assert torch.equal(pooled, uneven[:8])
    shifted = given.keys.view(3, 8, keys_per_slot) + torch.tensor([0, 40, 81])[:, None, None]
    torch.testing.assert_close(pooled, weights[shifted].sum(2).transpose(0, 1))


def test_a_key_outside_its_slot_is_named_in_even_batches_too() -> None:
    layer = localized(SIZES)
    given = _one_hot(layer)
    given.keys[9] = 41
    with single_rank(), pytest.raises(DataError, match="local, slot 1: key 41 is none of the 41"):
        Case(recommender(SGD, layer), None).embeddings(1)({layer.input: given}).wait()


def test_a_key_outside_its_slot_is_named() -> None:
    layer = localized((40, 3, 45))
    with single_rank(), pytest.raises(DataError, match=r"local, slot 1: key \d+ is none of the 3"):
        train_step(Case(recommender(SGD, layer), None).embeddings(1), 1)


def test_half_precision_outputs_train_to_nearly_the_same_losses() -> None:
    model = recommender(SGD, hashed(), localized(SIZES))
    plan = plan_of(model, None, 1)
    with single_rank():
        exact = ShardedEmbeddings(model, plan, device=CPU, seed=5)
        half = ShardedEmbeddings(model, plan, device=CPU, seed=5, output_dtype=torch.float16)
        layer = model.embeddings[0]
        given = {each.input: batch(each, 1) for each in model.embeddings}
        assert half(given).wait()[layer.output].dtype is torch.float16
        half.drop_gradients()
        for step in range(1, STEPS + 1):
            assert train_step(half, step) == pytest.approx(train_step(exact, step), rel=2e-3)


def test_infinite_gradients_are_told_and_can_be_dropped() -> None:
    layer = hashed()
    with single_rank():
        embeddings = Case(recommender(SGD, layer), None).embeddings(1)
        (embeddings({layer.input: batch(layer, 1)}).wait()[layer.output].sum() * float("inf")).backward()
        assert not embeddings.has_finite_gradients()
        before = embeddings.stores[0].table.weights.clone()
        embeddings.drop_gradients()
        assert embeddings.has_finite_gradients()
        embeddings.update(0.1, 1.0, 1)
        torch.testing.assert_close(embeddings.stores[0].table.weights[:-1], before[:-1], rtol=0, atol=0, equal_nan=True)


def _train_without_keys(rank: int, ranks: int, folder: Path) -> None:
    """Train on batches of no key at all, then of keys that rank 0 alone owns, then again of none."""
    for sharding in Sharding:
        for kind, update in ((OptimizerKind.ADAM, UpdateType.GLOBAL), (OptimizerKind.NESTEROV, UpdateType.LAZY_GLOBAL)):
            model = recommender(optimizer(kind, update), hashed(), localized(SIZES))
            embeddings = Case(model, sharding).embeddings(ranks)
            for step, length in enumerate((0, 2, 0), start=1):
                keys, lengths = torch.full((24 * length,), 4), torch.full((24,), length, dtype=torch.int32)
                given = {layer.input: SparseInput(keys, lengths) for layer in model.embeddings}
                pooled = embeddings(given).wait()
                assert all(bool(output.any()) == (length > 0) for output in pooled.values())
                sum(output.sum() for output in pooled.values()).backward()
                embeddings.update(0.1, 1.0, step)
            embeddings.check_overflow()


def test_ranks_without_keys_train_along(tmp_path: Path) -> None:
    on_ranks(_train_without_keys, tmp_path)


def test_a_plan_of_other_ranks_or_tables_is_refused() -> None:
    model = recommender(SGD, hashed(), localized(SIZES))
    with single_rank():
        with pytest.raises(ConfigError, match="plan is one of 2 ranks; there are 1"):
            ShardedEmbeddings(model, plan_of(model, None, 2), device=CPU, seed=5)
        other = plan_of(recommender(SGD, hashed()), None, 1)
        with pytest.raises(ConfigError, match=r"differ in table local\.slot0"):
            ShardedEmbeddings(model, other, device=CPU, seed=5)


def test_embeddings_have_no_parameters_of_torch() -> None:
    model = recommender(SGD, hashed())
    with single_rank():
        embeddings = ShardedEmbeddings(model, default_plan(model.embeddings, 1), device=CPU, seed=5)
        assert not list(embeddings.parameters())
        assert not embeddings.state_dict()
