"""Files of a whole model, with HugeCTR's names: dense and sparse models, and the states of their optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import distributed

from hugectr.dense.files import Progress, load_network, load_optimizer, save_network, save_optimizer
from hugectr.dense.network import DenseNetwork
from hugectr.dense.optimizers import DenseOptimizer
from hugectr.embedding.files import EmbeddingFiles
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
    """What is saved and loaded together; all ranks call its methods together."""

    def __init__(
        self,
        network: DenseNetwork,
        optimizer: DenseOptimizer,
        embeddings: ShardedEmbeddings,
        *,
        is_64_bit: bool,
    ) -> None:
        """Name the parts; ``is_64_bit`` is the width of keys."""
        self._network, self._optimizer = network, optimizer
        self._group, self._is_first = embeddings.group, embeddings.rank == 0
        self._files = EmbeddingFiles(embeddings, is_64_bit=is_64_bit)
        self._num_embeddings = len(embeddings.model.embeddings)

    def save(self, files: Snapshot, progress: Progress) -> None:
        """Write all files, which are there for all ranks when it returns."""
        if self._is_first:
            save_network(self._network, Path(files.dense))
            save_optimizer(self._optimizer, Path(files.dense_states), progress)
        self._files.save_models([Path(name) for name in files.sparse])
        self._files.save_states([Path(name) for name in files.sparse_states])
        distributed.barrier(group=self._group)

    def load(self, files: Snapshot) -> Progress:
        """Read the files that are named, and return the progress of the dense optimizer's states.

        Raises:
            HugeCtrError: a file is missing or does not fit the configuration.
        """
        self._check_number("embedding_files", files.sparse)
        self._check_number("sparse_opt_states_file", files.sparse_states)
        if files.sparse and files.sparse_states:
            self._files.check_pairs([Path(name) for name in files.sparse], [Path(name) for name in files.sparse_states])
        if files.dense:
            load_network(self._network, Path(files.dense))
        if files.sparse:
            self._files.load_models([Path(name) for name in files.sparse])
        if files.sparse_states:
            self._files.load_states([Path(name) for name in files.sparse_states])
        if files.dense_states:
            return load_optimizer(self._optimizer, Path(files.dense_states))
        return Progress(optimizer=self._optimizer.optimizer.kind, steps=0)

    def _check_number(self, name: str, files: tuple[str, ...]) -> None:
        if files and len(files) != self._num_embeddings:
            raise HugeCtrError(
                f"{name} has {len(files)} files; the configuration has {self._num_embeddings} embedding layers"
            )
