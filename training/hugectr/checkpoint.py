"""Files of a whole model, with HugeCTR's names: dense and sparse models, and the states of their optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import distributed

from hugectr.dense.files import Progress, load_network, load_optimizer, save_network, save_optimizer
from hugectr.dense.network import DenseNetwork
from hugectr.dense.optimizers import DenseOptimizer
from hugectr.embedding.files import load_states, load_tables, save_states, save_tables
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from hugectr.exceptions import HugeCtrError
from hugectr.model_oversubscriber import ModelOversubscriber
from hugectr.solver import SolverParser


class Snapshot(NamedTuple):
    """The files of a model; '' or () where there are none."""

    dense: str
    dense_states: str
    sparse: tuple[str, ...]
    sparse_states: tuple[str, ...]


def snapshot(prefix: str, iteration: int, num_embeddings: int) -> Snapshot:
    """Return the names of all files of an iteration. Source: HugeCTR, ``download_params_to_files``."""
    numbers = range(num_embeddings)
    return Snapshot(
        f"{prefix}_dense_{iteration}.model",
        f"{prefix}_opt_dense_{iteration}.model",
        tuple(f"{prefix}{number}_sparse_{iteration}.model" for number in numbers),
        tuple(f"{prefix}{number}_opt_sparse_{iteration}.model" for number in numbers),
    )


def snapshot_of(solver: SolverParser) -> Snapshot:
    """Return the files that training begins with."""
    return Snapshot(
        solver.model_file, solver.dense_opt_states_file, solver.embedding_files, solver.sparse_opt_states_file
    )
