"""Measure a step of DCN beside plain TorchRec: ``python -m tests.hugectr.bench_step``.

Same layers, table, batches, precision and optimizer (SGD, fused in TorchRec's CPU kernel) on one rank; both read the
same data ahead. HugeCTR's interface finds rows through an index of keys; TorchRec's keys are row numbers.
Rounds of both alternate in one process, so that what else the machine does touches both (goal: no slower).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from hugectr import Session, solver_parser_helper
from hugectr.data.generator import Amount, generate
from hugectr.data.readers import make_reader
from predictor.recommender.hugectr.reading import read_hugectr
from tests.hugectr.plain_dcn import PlainDcn
from tests.hugectr.small_dcn import dcn

SLOTS, DENSE, WIDTH, CROSS, DROPOUT, RATE = 26, 13, 16, 6, 0.5, 0.01
VOCABULARY = 260_000
CONFIG = "dcn.json"
STEPS = 5  # of one side before the other has its turn
FEATURES = [f"slot{slot}" for slot in range(SLOTS)]


class PlainModel(nn.Module):
    """One table for all slots, as a distributed layer has, and the dense network."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        table = EmbeddingBagConfig(name="table", embedding_dim=WIDTH, num_embeddings=VOCABULARY, feature_names=FEATURES)
        self.embeddings = EmbeddingBagCollection(tables=[table], device=torch.device("meta"))
        apply_optimizer_in_backward(torch.optim.SGD, self.embeddings.parameters(), {"lr": RATE})
        self.dense = PlainDcn(SLOTS * WIDTH + DENSE, hidden, CROSS, DROPOUT)

    def forward(self, keys: Any, dense: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.dense(torch.cat((self.embeddings(keys).values(), dense), dim=1))
        return logits


def write_data(hidden: int, batch_size: int) -> None:
    """Write configuration and data into the working directory."""
    sgd = {"type": "SGD", "sgd_hparam": {"learning_rate": RATE}}
    data = {"source": "data/file_list.txt", "eval_source": "data/file_list_test.txt"}
    content = dcn(hidden=hidden, dropout=DROPOUT, vocabulary=VOCABULARY, optimizer=sgd, data=data)
    Path(CONFIG).write_text(json.dumps(content))
    amount = Amount(files=4, samples=4 * batch_size, eval_files=1)
    generate(read_hugectr(Path(CONFIG)), Path("data"), VOCABULARY, amount=amount, long_tail="long")


def plain_step(hidden: int, batch_size: int) -> Callable[[], None]:
    """Return a function that does one step of plain TorchRec; a session has made the process group."""
    config = read_hugectr(Path(CONFIG))
    reader = make_reader(
        config.data, source=config.data.source, batch_size=batch_size, rank=0, num_ranks=1, i64_input_key=False,
        repeat=True, num_samples=None,
    )  # fmt: skip
    reader.start()
    model = DistributedModelParallel(PlainModel(hidden), device=torch.device("cpu"))
    dense = [parameter for name, parameter in model.named_parameters() if "embeddings" not in name]
    optimizer = torch.optim.SGD(dense, lr=RATE)

    def step() -> None:
        batch = reader.next()
        assert batch is not None
        keys, lengths = batch.sparse["data1"]
        logits = model(KeyedJaggedTensor(keys=FEATURES, values=keys, lengths=lengths), batch.dense)
        functional.binary_cross_entropy_with_logits(logits, batch.label[:, 0]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], Any]) -> float:
    """Return milliseconds per step over a round of steps."""
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    return 1e3 * (time.perf_counter() - started) / STEPS


def main(argv: list[str] | None = None) -> None:
    """Let both sides take turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_data(arguments.hidden, arguments.batch_size)
        solver = solver_parser_helper(batchsize=arguments.batch_size, batchsize_eval=arguments.batch_size)
        with Session(solver, CONFIG) as session:
            session.start_data_reading()
            plain = plain_step(arguments.hidden, arguments.batch_size)
            for step in (session.train, plain):
                timed(step)
            rounds = [(timed(session.train), timed(plain)) for _ in range(arguments.rounds)]
    ours, theirs = (sorted(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(mine / plain_ms for mine, plain_ms in rounds)
    print(f"DCN, batch {arguments.batch_size}, hidden {arguments.hidden}, {torch.get_num_threads()} thread")
    print(f"hugectr        {statistics.median(ours):8.2f} ms a step, from {ours[0]:.2f} to {ours[-1]:.2f}")
    print(f"plain TorchRec {statistics.median(theirs):8.2f} ms a step, from {theirs[0]:.2f} to {theirs[-1]:.2f}")
    print(f"ratio of medians {statistics.median(ours) / statistics.median(theirs):.3f}, by round {ratio:.3f}")


if __name__ == "__main__":
    main()
