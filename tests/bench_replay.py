"""What a change of a traced step predicts beside what it takes: run by hand on an idle machine with torch.

    python -m tests.bench_replay

Two models take turns on two data-parallel ranks, so that both see the same machine. Steps of the first are replayed
with the change that makes it the second, whose steps are measured.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from predictor.replay.answer import answered
from predictor.replay.files.reading import read_traces
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.whatif.changes import Means
from predictor.replay.whatif.traced_step import joined

RANKS, LAYERS, WIDTH, BATCH, STEPS, WARM_UP = 2, 8, 512, 256, 20, 4


class Model(NamedTuple):
    """A model of a pair."""

    bucket_mb: float
    has_gelu: bool


# Of each change, the model that is traced and the one that it should become.
PAIRS = {
    "bucket_mb=25": (Model(1, True), Model(25, True)),
    "bucket_mb=1": (Model(25, True), Model(1, True)),
    "operator:aten::gelu=remove": (Model(1, True), Model(1, False)),
}


def build(model: Model) -> nn.Module:
    """Return a model on this rank."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), *([nn.GELU()] if model.has_gelu else [])]
    return nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=model.bucket_mb)


def train(rank: int, meeting: str, folder: str, pair: tuple[Model, Model]) -> None:
    """Train both models in turns and write the trace of this rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    models = [build(model) for model in pair]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    samples = torch.randn(BATCH, WIDTH)
    turns = schedule(wait=WARM_UP - 1, warmup=1, active=2 * STEPS, repeat=1)
    path = Path(folder) / f"rank-{rank}.json"
    with profile(activities=[ProfilerActivity.CPU], schedule=turns, record_shapes=True) as profiler:
        for step in range(WARM_UP + 2 * STEPS):
            model, optimizer = models[step % 2], optimizers[step % 2]
            optimizer.zero_grad()
            model(samples).square().mean().backward()
            optimizer.step()
            dist.barrier()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    dist.barrier()
    dist.destroy_process_group()


def compare(change: str, folder: str) -> str:
    """Return the measured and the predicted step of a pair, medians in milliseconds."""
    traces = read_traces([folder])
    measured: tuple[list[float], list[float]] = ([], [])
    predicted = []
    for number in range(2 * STEPS):
        step = joined(global_graph([local_graph(trace, number) for trace in traces]))
        measured[number % 2].append(step.measured_us)
        if number % 2 == 0:
            predicted.append(answered(step, [change], Means()).shown.step_us)
    before, after = (median(times) / 1e3 for times in measured)
    expected = median(predicted) / 1e3
    error = expected / after - 1
    return f"{change:30} {before:8.2f} ms → predicted {expected:8.2f}, measured {after:8.2f} ms: {error:+.1%}"


def main() -> None:
    """Record and compare every pair."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for change, pair in PAIRS.items():
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as place:
            mp.spawn(train, args=(f"{place}/meeting", folder, pair), nprocs=RANKS)
            print(compare(change, folder))


if __name__ == "__main__":
    main()
