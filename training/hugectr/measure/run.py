"""Train a HugeCTR configuration on batches in memory for some steps, and record them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed

from hugectr.data.batch import Batch
from hugectr.exceptions import HugeCtrError
from hugectr.launchers import launched
from hugectr.measure.batches import make_batches
from hugectr.process_group import join_alone, join_launched
from hugectr.rank_engine import Rank, RankEngine
from hugectr.solver import SolverParser, solver_parser_helper
from model_training_framework.trainer import TrainerError
from model_training_framework.trainer.step_profiler import StepProfiler
from model_training_framework.trainer.step_timer import RunFacts, StepTimer
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.recommender.hugectr.plan_file import write_plan
from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.hugectr.sections import Data
from predictor.recommender.hugectr.to_run import KEY_BYTES, plan_of, precision_of
from predictor.recommender.workload.keys import KeyDistribution
from predictor.recommender.workload.run import Engine, RecommenderRun
from predictor.replay.files.measured_step import DATA, write_measured_steps


class MemoryReader:
    """Gives the same batches again and again."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        """Keep the batches of this rank."""
        self._batches = batches
        self._given = 0

    def next(self) -> Batch:
        """Return the next batch."""
        batch = self._batches[self._given % len(self._batches)]
        self._given += 1
        return batch

    def start(self) -> None:
        """Begin; there is nothing to read ahead."""

    def set_source(self, file_name: str = "") -> None:
        """Begin anew."""
        self._given = 0

    def close(self) -> None:
        """End."""


class MeasuredConfig(NamedTuple):
    """What is run and recorded.

    Attributes:
        content: as it was read.
        run: what it means.
        data: the data layer.
    """

    content: dict[str, Any]
    run: RecommenderRun
    data: Data


def read_measured_config(path: Path) -> MeasuredConfig:
    """Read a configuration for training.

    Raises:
        HugeCtrError: it is none, or its plan does not fit it.
    """
    try:
        return _read(path)
    except (ConfigError, MissingKeyError, OSError) as error:
        raise HugeCtrError(str(error)) from None


def _read(path: Path) -> MeasuredConfig:
    config = read_hugectr(path)
    solver, clause = config.solver, config.prediction
    if solver is None or config.model.loss is None:
        raise HugeCtrError(f"{path} has no solver and loss; only a configuration for training has steps")
    ranks = clause.num_gpus or sum(len(node) for node in solver.gpu)
    batch_size = clause.batch_size or solver.batchsize
    if batch_size % ranks:
        raise HugeCtrError(f"{path}: the batch of {batch_size} samples is no multiple of the {ranks} GPUs")
    run = RecommenderRun(
        model=config.model,
        plan=plan_of(config, clause.plan, ranks, path.parent),
        batch_size=batch_size,
        num_gpus=ranks,
        gpus_per_node=clause.gpus_per_node or ranks,
        precision=precision_of(config),
        tf32=solver.enable_tf32_compute,
        keys=KeyDistribution(clause.key_exponent),
        key_bytes=KEY_BYTES[solver.input_key_type],
        engine=Engine.TORCHREC,
        copies_input=False,
    )
    return MeasuredConfig(config.content, run, config.data)


# Gradients of tensors that several layers read; other sums in a layer's backward pass are the layer's.
BRANCH_SUMS = dict.fromkeys(("aten::add", "aten::add_"), "residual_add")
NUM_BATCHES = 4  # that follow each other in turn
SCALER = 1024.0  # of mixed precision; it does not change the time of a step


class StepCounts(NamedTuple):
    """Steps that are let go, timed and profiled."""

    warm_up: int
    timed: int
    profiled: int


class MeasuredEngine(RankEngine):
    """The engine of a session on batches in memory."""

    def __init__(self, solver: SolverParser, config_file: Path, rank: Rank, batches: Sequence[Batch]) -> None:
        """Build the model."""
        self._batches = batches
        super().__init__(solver, str(config_file), False, "", rank)

    def _reader(self, which: str) -> MemoryReader:
        return MemoryReader(self._batches)


def solver_of(config: MeasuredConfig, plan: Path) -> SolverParser:
    """Return the settings of a session that runs a configuration with the plan of a file."""
    run = config.run
    mixed = run.precision != "fp32"
    return solver_parser_helper(
        batchsize=run.batch_size,
        batchsize_eval=run.batch_size,
        vvgpu=[list(range(run.num_gpus))],
        use_mixed_precision=mixed,
        enable_tf32_compute=run.tf32,
        scaler=SCALER if mixed else 1.0,
        i64_input_key=run.key_bytes == 8,
        sharding_plan=str(plan),
    )


def join_ranks(solver: SolverParser, device: str) -> Rank:
    """Return this process's rank.

    Raises:
        HugeCtrError: the processes that were started are not those of the configuration.
    """
    place = launched(os.environ)
    size = 1 if place is None else place.size
    if size != solver.num_ranks:
        raise HugeCtrError(
            f"the configuration has {solver.num_ranks} GPUs and {size} processes were started; start it with: "
            f"torchrun --nproc-per-node {solver.num_ranks} -m hugectr.measure"
        )
    rank = join_alone(solver) if place is None else join_launched(solver, place)
    return rank._replace(device=torch.device("cpu")) if device == "cpu" else rank


def run_and_record(config_file: Path, counts: StepCounts, out: Path, device: str) -> None:
    """Train for some steps, and write this rank's record below ``out``.

    Args:
        config_file: HugeCTR's JSON.
        counts: of steps.
        out: folder of the record.
        device: cpu, cuda, or auto for a GPU where there is one.

    Raises:
        HugeCtrError: the configuration cannot be trained, or not by the processes that were started.
        TrainerError: the record cannot be written.
    """
    config = read_measured_config(config_file)
    with tempfile.TemporaryDirectory(prefix="measured-run-") as folder:
        plan = Path(folder, "plan.json")
        write_plan(config.run.plan, plan)
        solver = solver_of(config, plan)
        rank = join_ranks(solver, device)
        try:
            batches = make_batches(config.run, config.data, NUM_BATCHES, rank.number, rank.device)
            _record(MeasuredEngine(solver, config_file, rank, batches), config, counts, rank, out)
        finally:
            distributed.destroy_process_group()


def _record(engine: RankEngine, config: MeasuredConfig, counts: StepCounts, rank: Rank, out: Path) -> None:
    is_gpu = rank.device.type == "cuda"
    timer = StepTimer(is_gpu)
    profiler = StepProfiler(counts.profiled, is_gpu, beside=BRANCH_SUMS)
    engine.start_data_reading()
    engine.mark = timer.mark
    for step in range(counts.warm_up + counts.timed):
        distributed.barrier()  # ranks begin a step together, as those of a step without reading do
        timer.marks.clear()
        engine.train()
        timer.mark(DATA)
        marks = timer.take()
        if step >= counts.warm_up:
            timer.keep(marks)
    facts = RunFacts(
        rank=rank.number,
        world_size=rank.size,
        device=rank.device,
        num_micro_batches=1,
        precision=config.run.precision,
        strategy=type(engine).__name__,
        description=config.content,
    )
    spans, provenance = timer.record(facts, counts.warm_up + 1, counts.warm_up)
    provenance = provenance.model_copy(update={"threads": torch.get_num_threads()})
    while not profiler.is_done:
        profiler.start()
        engine.train()
        profiler.stop()
    if profiler.num_steps:
        spans, provenance = profiler.added(spans, provenance)
    engine.close()
    try:
        write_measured_steps(out, spans, provenance)
    except OSError as error:
        raise TrainerError(f"{out} cannot be written: {error.strerror}") from error
