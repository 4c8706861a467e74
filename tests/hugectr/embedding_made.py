"""Small sharded embeddings, trained on one rank in this process or on two as processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from hugectr.data.batch import SparseInput
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from predictor.recommender.workload.embedding import Combiner, EmbeddingKind, EmbeddingLayer
from predictor.recommender.workload.model import Recommender
from predictor.recommender.workload.optimizer import Optimizer, OptimizerKind, Schedule, UpdateType
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan
from tests.ranks import free_port, run_together

SAMPLES = 8
STEPS = 6
CPU = torch.device("cpu")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.hugectr.embedding_made"])


def optimizer(kind: OptimizerKind, update: UpdateType) -> Optimizer:
    return Optimizer(kind, Schedule(0.1), update, epsilon=1e-6, momentum=0.7, initial=0.1)


def hashed(name: str = "hashed", width: int = 8, combiner: Combiner = Combiner.SUM, rows: int = 500) -> EmbeddingLayer:
    return EmbeddingLayer(
        name, f"{name}_in", f"{name}_out", EmbeddingKind.DISTRIBUTED, 3, width, combiner, rows, (), (1.0,) * 3
    )


def localized(sizes: tuple[int, ...] = (), rows: int = 500, combiner: Combiner = Combiner.SUM) -> EmbeddingLayer:
    return EmbeddingLayer(
        "local", "local_in", "local_out", EmbeddingKind.LOCALIZED, 3, 8, combiner, rows, sizes, (1.0,) * 3
    )


def recommender(rule: Optimizer, *layers: EmbeddingLayer) -> Recommender:
    return Recommender("label", 1, "dense", 1, layers, (), rule)


def plan_of(model: Recommender, sharding: Sharding | None, ranks: int) -> ShardingPlan:
    """Return a plan with all tables sharded alike; None: table-wise."""
    tables = [table for layer in model.embeddings for table in layer.tables(ranks)]
    every = tuple(range(ranks))
    placed: list[tuple[int, ...]]
    if sharding in (None, Sharding.TABLE_WISE):
        placed = [((number + 1) % ranks,) for number in range(len(tables))]
    else:
        placed = [every] * len(tables)
    way = sharding or Sharding.TABLE_WISE
    return ShardingPlan(ranks, tuple(ShardedTable(t, way, on) for t, on in zip(tables, placed, strict=True)))


def batch(layer: EmbeddingLayer, step: int, rank: int = 0, ranks: int = 1, keys: int = 40) -> SparseInput:
    """Return a rank's share of a batch: 0 to 3 keys a slot, of which slots share none; some have all 64 bits."""
    random = torch.Generator().manual_seed(step)
    first, last = rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks
    lengths = torch.randint(0, 4, (layer.num_slots, SAMPLES), generator=random, dtype=torch.int32)
    values = []
    for slot in range(layer.num_slots):
        for sample in range(SAMPLES):
            some = torch.randint(0, keys, (int(lengths[slot, sample]),), generator=random)
            if not layer.slot_rows:
                some = (some * layer.num_slots + slot) * (1 if step < STEPS // 2 else 3_000_000_000_000_000_019)
            if first <= sample < last:
                values.append(some)
    return SparseInput(torch.cat(values), lengths[:, first:last].reshape(-1))


def target(layer: EmbeddingLayer, step: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 + step)
    return torch.randn(SAMPLES, layer.num_slots, layer.width, generator=random)


def _loss(embeddings: ShardedEmbeddings, step: int, rank: int, ranks: int) -> torch.Tensor:
    first, last = rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks
    layers = embeddings.model.embeddings
    pooled = embeddings({layer.input: batch(layer, step, rank, ranks) for layer in layers}).wait()
    loss = torch.zeros(())
    for layer in layers:
        loss = loss + (pooled[layer.output].float() - target(layer, step)[first:last]).square().mean() * 10
    return loss


def train_step(
    embeddings: ShardedEmbeddings, step: int, rank: int = 0, ranks: int = 1, number: int | None = None
) -> float:
    """Train on the batch of a step, the ``number``-th one trained on, and return the loss of the whole batch."""
    loss = _loss(embeddings, step, rank, ranks)
    (loss * 4).backward()
    embeddings.update(0.1, 4.0, number or step)
    return mean_over_ranks(float(loss.detach()))


def evaluate(embeddings: ShardedEmbeddings, step: int, rank: int = 0, ranks: int = 1) -> float:
    """Return the loss of the batch of a step."""
    embeddings.eval()
    with torch.no_grad():
        loss = _loss(embeddings, step, rank, ranks)
    embeddings.train()
    return mean_over_ranks(float(loss))


def mean_over_ranks(value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / int(dist.get_world_size())


def mixed_plan(model: Recommender, ranks: int) -> ShardingPlan:
    """Return a plan that shards each table otherwise than the one before; columns lie on ranks in falling order."""
    tables = [table for layer in model.embeddings for table in layer.tables(ranks)]
    every, last = tuple(range(ranks)), (ranks - 1,)
    ways = [
        (Sharding.COLUMN_WISE, every[::-1]), (Sharding.DATA_PARALLEL, every), (Sharding.TABLE_WISE, last),
        (Sharding.ROW_WISE, every), (Sharding.TABLE_WISE, (0,)),
    ]  # fmt: skip
    return ShardingPlan(ranks, tuple(ShardedTable(table, *ways[n % len(ways)]) for n, table in enumerate(tables)))


class Case(NamedTuple):
    """One training run; without a sharding each table has another."""

    model: Recommender
    sharding: Sharding | None

    def embeddings(self, ranks: int) -> ShardedEmbeddings:
        mixed = self.sharding is None and ranks > 1
        plan = mixed_plan(self.model, ranks) if mixed else plan_of(self.model, self.sharding, ranks)
        return ShardedEmbeddings(self.model, plan, device=CPU, seed=5)

    def losses(self, rank: int = 0, ranks: int = 1) -> list[float]:
        embeddings = self.embeddings(ranks)
        losses = [train_step(embeddings, step, rank, ranks) for step in range(1, STEPS + 1)]
        embeddings.check_overflow()
        return losses


def _rank(act: Callable[[int, int, Path], None], rank: int, ranks: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    act(rank, ranks, folder)
    dist.destroy_process_group()


def on_ranks(act: Callable[[int, int, Path], None], folder: Path, ranks: int = 2) -> None:
    """Run ``act(rank, ranks, folder)`` on so many ranks."""
    port = free_port()
    processes = [_CONTEXT.Process(target=_rank, args=(act, rank, ranks, port, folder)) for rank in range(ranks)]
    codes = run_together(processes, 120.0, expected={0})
    assert codes == [0] * ranks


@contextmanager
def single_rank() -> Iterator[None]:
    """Let this process be a group of one rank."""
    if dist.is_initialized():  # a session of an earlier test left it
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
