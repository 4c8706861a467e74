"""The run that a HugeCTR configuration asks for, without a system to predict it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hugectr.exceptions import HugeCtrError
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.hugectr.sections import Data
from predictor.recommender.hugectr.to_run import KEY_BYTES, plan_of, precision_of
from predictor.recommender.workload.keys import KeyDistribution
from predictor.recommender.workload.run import Engine, RecommenderRun


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
