"""Files of a whole model, with HugeCTR's names: dense and sparse models, and the states of their optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import distributed

from hugectr.dense.files import Progress, load_network, load_optimizer, save_network, save_optimizer
from hugectr.dense.network import DenseNetwork
from hugectr.dense.optimizers import DenseOptimizer
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from hugectr.exceptions import HugeCtrError
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


class Checkpoint:
    """What is saved and loaded together."""

    def __init__(
        self,
        network: DenseNetwork,
        optimizer: DenseOptimizer,
        embeddings: ShardedEmbeddings,
        rank: Any,
        oversubscriber: Any,
    ) -> None:
        """Name the parts; ``rank`` is this process's."""
        self._network, self._optimizer, self._embeddings = network, optimizer, embeddings
        self._rank, self._oversubscriber = rank, oversubscriber

    def save(self, files: Snapshot, progress: Progress) -> None:
        """Write all files; a collective, after which they are there for all ranks."""
        if self._rank.number == 0:
            save_network(self._network, Path(files.dense))
            save_optimizer(self._optimizer, Path(files.dense_states), progress)
        if self._oversubscriber is not None:
            self._oversubscriber.store(list(files.sparse), list(files.sparse_states))
        else:
            self._embeddings.save(list(files.sparse), list(files.sparse_states))
        if self._rank.size > 1:
            distributed.barrier(group=self._rank.group)

    def load(self, files: Snapshot) -> Progress:
        """Read the files that are named, and return the progress of the dense optimizer's states.

        Raises:
            HugeCtrError: a file is missing or does not fit the configuration.
        """
        if files.dense:
            load_network(self._network, Path(files.dense))
        if files.sparse or files.sparse_states:
            self._check_number("embedding_files", files.sparse)
            self._check_number("sparse_opt_states_file", files.sparse_states)
            self._embeddings.load(list(files.sparse), list(files.sparse_states))
        if files.dense_states:
            return load_optimizer(self._optimizer, Path(files.dense_states))
        return Progress(optimizer=self._optimizer.optimizer.kind, steps=0)

    def _check_number(self, name: str, files: tuple[str, ...]) -> None:
        expected = len(self._embeddings.model.embeddings)
        if files and len(files) != expected:
            raise HugeCtrError(f"{name} has {len(files)} files; the configuration has {expected} embedding layers")
