"""Measure every sharding plan of a small model on two ranks, and the plan that is predicted to be the fastest.

``python -m tests.hugectr.bench_plans --system results/verify_recommender/published`` after ``make verify-recommender``.
All plans live in the same two processes and take turns step by step, so that what disturbs the machine disturbs all of
them alike. Prints; timing decides no test.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from predictor.evidence.verification.launching import LOOPBACK, Runner
from predictor.recommender.hugectr.plan_file import write_plan
from predictor.recommender.hugectr.reading import parse_hugectr
from predictor.recommender.hugectr.to_run import Options, to_run
from predictor.recommender.step import predict_recommender
from predictor.recommender.workload.embedding import Table
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan

RANKS, BATCH, WIDTH = 2, 4096, 64
SIZES = (400, 100_000)  # a table that is best copied, and one that is not
HOTNESS = (1.0, 4.0)
WARM_UP = 3
FIGURES = "steps.json"


class PlanTimes(NamedTuple):
    """One plan: its predicted step, and the slowest rank's time of every measured one, in microseconds."""

    name: str
    predicted_us: float
    samples_us: list[float]

    @property
    def measured_us(self) -> float:
        """Return the median step."""
        return median(self.samples_us)


def configuration() -> dict[str, Any]:
    """Return a DLRM of two tables."""
    linear = {"type": "InnerProduct"}
    sizes = list(SIZES)
    return {
        "solver": {"batchsize": BATCH, "gpu": list(range(RANKS))},
        "optimizer": {"type": "SGD", "sgd_hparam": {"learning_rate": 0.01}},
        "layers": [
            {
                "name": "data", "type": "Data", "format": "Raw", "slot_size_array": sizes,
                "label": {"top": "label", "label_dim": 1}, "dense": {"top": "dense", "dense_dim": 13},
                "sparse": [
                    {"top": "keys", "type": "LocalizedSlot", "max_feature_num_per_sample": 8, "slot_num": len(sizes)}
                ],
            },
            {
                "name": "tables", "type": "LocalizedSlotSparseEmbeddingHash", "bottom": "keys", "top": "tables",
                "sparse_embedding_hparam": {"slot_size_array": sizes, "embedding_vec_size": WIDTH, "combiner": 0},
            },
            {"name": "fc1", **linear, "bottom": "dense", "top": "fc1", "fc_param": {"num_output": WIDTH}},
            {"name": "interaction", "type": "Interaction", "bottom": ["fc1", "tables"], "top": "pairs"},
            {"name": "fc2", **linear, "bottom": "pairs", "top": "fc2", "fc_param": {"num_output": 1}},
            {"name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": ["fc2", "label"], "top": "loss"},
        ],
        "prediction": {"hotness": {"keys": list(HOTNESS)}},
    }  # fmt: skip


def ways(table: Table) -> list[ShardedTable]:
    """Return every way in which two ranks hold a table."""
    both = tuple(range(RANKS))
    split = [
        ShardedTable(table, sharding, both)
        for sharding in (Sharding.ROW_WISE, Sharding.COLUMN_WISE, Sharding.DATA_PARALLEL)
    ]
    return [*(ShardedTable(table, Sharding.TABLE_WISE, (rank,)) for rank in both), *split]


def plans(tables: tuple[Table, ...]) -> Iterator[ShardingPlan]:
    """Yield every plan, those that differ by the ranks' numbers once."""
    for choice in product(*map(ways, tables)):
        whole = [sharded.ranks for sharded in choice if sharded.sharding is Sharding.TABLE_WISE]
        if not whole or whole[0] == (0,):
            yield ShardingPlan(RANKS, choice)


def name_of(plan: ShardingPlan) -> str:
    """Return the ways of the tables, in their order."""
    return ", ".join(
        f"{sharded.sharding} {sharded.ranks[0]}" if sharded.sharding is Sharding.TABLE_WISE else str(sharded.sharding)
        for sharded in plan.tables
    )


def measure(folder: Path, rounds: int) -> None:
    """Time a step of every plan in turn, as one of the ranks; rank 0 writes the figures."""
    import time

    import torch
    from torch import distributed

    from hugectr.measure.batches import make_batches
    from hugectr.measure.run import NUM_BATCHES, MeasuredEngine, join_ranks, read_measured_config, solver_of

    torch.set_num_threads(1)
    config_file = folder / "config.json"
    config = read_measured_config(config_file)
    files = sorted(folder.glob("plan-*.json"))
    rank = join_ranks(solver_of(config, files[0]), "cpu")
    batches = make_batches(config.run, config.data, NUM_BATCHES, rank.number, rank.device)
    engines = [MeasuredEngine(solver_of(config, file), config_file, rank, batches) for file in files]
    for engine in engines:
        engine.start_data_reading()
    samples: list[list[float]] = [[] for _ in engines]
    for step in range(WARM_UP + rounds):
        for engine, taken in zip(engines, samples, strict=True):
            distributed.barrier()
            begin = time.perf_counter()
            engine.train()
            slowest = torch.tensor(1e6 * (time.perf_counter() - begin))
            distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
            if step >= WARM_UP:
                taken.append(float(slowest))
    if rank.number == 0:
        (folder / FIGURES).write_text(json.dumps(samples), encoding="utf-8")
    distributed.destroy_process_group()


def measured(folder: Path, rounds: int) -> list[list[float]]:
    """Run the ranks and return the steps of every plan."""
    ranks = ("--nproc-per-node", str(RANKS), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:0")
    called = ("-m", "tests.hugectr.bench_plans", "--worker", str(folder), "--rounds", str(rounds))
    runner = Runner(sys.executable, "cpu", rounds, 1, 900.0)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--local-addr", LOOPBACK, *ranks, *called],
        env=runner.environment(), check=True, timeout=runner.timeout_s, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    samples: list[list[float]] = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    return samples


def compare(system: str, rounds: int) -> list[PlanTimes]:
    """Return every plan, predicted on a system and measured here, the one predicted to be the fastest first."""
    loaded = to_run(parse_hugectr(configuration()), Options(system=system))
    tables = tuple(sharded.table for sharded in loaded.run.plan.tables)
    every = list(plans(tables))
    with tempfile.TemporaryDirectory(prefix="bench-plans-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(configuration()), encoding="utf-8")
        for number, plan in enumerate(every):
            write_plan(plan, folder / f"plan-{number:03d}.json")
        samples = measured(folder, rounds)
    times = [
        PlanTimes(name_of(plan), predict_recommender(replace(loaded.run, plan=plan), loaded.system).step.us, taken)
        for plan, taken in zip(every, samples, strict=True)
    ]
    return sorted(times, key=lambda plan: plan.predicted_us)


def main() -> None:
    """Measure, predict and print."""
    parser = argparse.ArgumentParser(description="Measure every sharding plan of a small model.")
    parser.add_argument("--system", default="results/verify_recommender/published", help="that predicts")
    parser.add_argument("--rounds", type=int, default=15, help="steps of every plan")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        measure(arguments.worker, arguments.rounds)
        return
    times = compare(arguments.system, arguments.rounds)
    best = min(times, key=lambda plan: plan.measured_us)
    print(f"tables of {SIZES[0]:,} and {SIZES[1]:,} rows, width {WIDTH}, {BATCH:,} samples on {RANKS} ranks")
    print(f"{'plan':34} {'predicted ms':>12} {'measured ms':>12} {'shortest ms':>12} {'over the best':>14}")
    for plan in times:
        over = plan.measured_us / best.measured_us - 1.0
        numbers = (plan.predicted_us, plan.measured_us, min(plan.samples_us))
        print(f"{plan.name:34} {' '.join(f'{us / 1e3:12.2f}' for us in numbers)} {over:+14.1%}")
    chosen = times[0]
    slower = chosen.measured_us / best.measured_us - 1.0
    print(f"predicted to be the fastest: {chosen.name}, {slower:.1%} slower than the fastest, {best.name}; asked: 5 %")
    quiet = min(times, key=lambda plan: min(plan.samples_us))  # on a machine that others disturb
    slower = min(chosen.samples_us) / min(quiet.samples_us) - 1.0
    print(f"by the shortest step of each plan: {slower:.1%} slower than the fastest, {quiet.name}")


if __name__ == "__main__":
    main()
