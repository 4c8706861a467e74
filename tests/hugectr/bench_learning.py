"""Measure what a model learns of planted labels: ``python -m tests.hugectr.bench_learning``.

Trains DCN on generated data (keys of a power law, labels of a hidden logistic model) and prints the AUC of unseen
samples beside that of a plain PyTorch model of the same size, optimizer, batches and number of steps, for several seeds
(goals: at least 0.75, and within 0.005 of plain PyTorch in the mean).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from hugectr import Session, solver_parser_helper
from hugectr.data.batch import Batch
from hugectr.data.generator import Amount, generate
from hugectr.data.readers import make_reader
from hugectr.metrics import area_under_curve
from predictor.recommender.hugectr.reading import HugeCtrConfig, read_hugectr
from tests.hugectr.plain_dcn import PlainDcn
from tests.hugectr.small_dcn import dcn

SLOTS, DENSE, WIDTH, HIDDEN, CROSS = 8, 4, 8, 64, 2
VOCABULARY, BATCH, RATE, DROPOUT = 2000, 512, 0.003, 0.2
FILES, SAMPLES, EVAL_FILES = 8, 8192, 2
EMBEDDING_BOUND = 0.05  # of initial rows, as hugectr.embedding draws them
CONFIG = "dcn.json"


def write_data() -> float:
    """Write configuration and data into the working directory; return the best AUC that a model can reach."""
    adam = {"type": "Adam", "update_type": "Global", "adam_hparam": {"learning_rate": RATE}}
    data = {"source": "data/file_list.txt", "eval_source": "data/file_list_test.txt"}
    content = dcn(
        slots=SLOTS, dense_dim=DENSE, width=WIDTH, hidden=HIDDEN, cross_layers=CROSS, dropout=DROPOUT,
        vocabulary=VOCABULARY, optimizer=adam, data=data,
    )  # fmt: skip
    Path(CONFIG).write_text(json.dumps(content))
    amount = Amount(FILES, SAMPLES, EVAL_FILES)
    return generate(read_hugectr(Path(CONFIG)), Path("data"), VOCABULARY, amount=amount, long_tail="long").best_auc


def batches(config: HugeCtrConfig, source: str) -> Iterator[Batch]:
    """Yield all whole batches of a file list."""
    reader = make_reader(
        config.data, source=source, batch_size=BATCH, rank=0, num_ranks=1, i64_input_key=False, repeat=False,
        num_samples=None,
    )  # fmt: skip
    reader.start()
    with contextlib.closing(reader):
        while (batch := reader.next()) is not None:
            yield batch


def hugectr_auc(seed: int, epochs: int) -> float:
    """Return the AUC of HugeCTR's interface."""
    solver = solver_parser_helper(
        seed=seed, batchsize=BATCH, batchsize_eval=BATCH, max_eval_batches=EVAL_FILES * SAMPLES // BATCH
    )
    with Session(solver, CONFIG) as session:
        session.start_data_reading()
        for _ in range(epochs * FILES * SAMPLES // BATCH):
            session.train()
        session.copy_weights_for_evaluation()
        auc: float = dict(session.evaluation())["AUC"]
        return auc


class Plain(nn.Module):
    """One embedding table for all slots, and the dense network."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.uniform_(self.table.weight, -EMBEDDING_BOUND, EMBEDDING_BOUND)
        self.dense = PlainDcn(SLOTS * WIDTH + DENSE, HIDDEN, CROSS, DROPOUT)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return logits; every slot has one key."""
        keys = batch.sparse["data1"].keys.view(SLOTS, -1).t()
        logits: torch.Tensor = self.dense(torch.cat((self.table(keys).flatten(1), batch.dense), dim=1))
        return logits


def plain_auc(seed: int, epochs: int) -> float:
    """Return the AUC of plain PyTorch."""
    config = read_hugectr(Path(CONFIG))
    torch.manual_seed(seed)
    model = Plain()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, eps=1e-7)
    for _ in range(epochs):
        for batch in batches(config, config.data.source):
            functional.binary_cross_entropy_with_logits(model(batch), batch.label[:, 0]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad():
        scored = [(model(batch), batch.label[:, 0]) for batch in batches(config, config.data.eval_source)]
    scores, labels = (torch.cat(column).numpy() for column in zip(*scored, strict=True))
    return area_under_curve(scores, labels)


def main(argv: list[str] | None = None) -> None:
    """Train both for every seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        best = write_data()
        print(f"best AUC that a model can reach: {best:.4f}; {arguments.epochs} epochs of {FILES * SAMPLES} samples")
        print(f"{'seed':>6}{'hugectr':>10}{'PyTorch':>10}{'difference':>12}")
        differences = []
        for seed in range(arguments.seeds):
            ours, plain = hugectr_auc(seed, arguments.epochs), plain_auc(seed, arguments.epochs)
            differences.append(ours - plain)
            print(f"{seed:6}{ours:10.4f}{plain:10.4f}{ours - plain:12.4f}", flush=True)
        print(f"mean difference {statistics.mean(differences):+.4f}")


if __name__ == "__main__":
    main()
