"""A training session: the documented interface, in front of one engine in this process or of one on each rank."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from hugectr.exceptions import HugeCtrError
from hugectr.launchers import check_engine, check_ranks, launched
from hugectr.preconditions import check_data, check_oversubscription, check_writable, file_name
from hugectr.ranks import SESSION_CLOSED, ChildRanks
from hugectr.schedule import read_configuration
from hugectr.solver import SolverParser


class Ranks(Protocol):
    """All ranks of a session that this process speaks for."""

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the engines."""

    def close(self) -> None:
        """End."""


class OwnRank:
    """The engine of this process."""

    def __init__(self, engine: Any) -> None:
        """Take the engine."""
        self._engine = engine

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of it.

        Raises:
            HugeCtrError: what the engine raised, or that the session is closed.
        """
        if self._engine is None:
            raise HugeCtrError(SESSION_CLOSED)
        return getattr(self._engine, method)(*args)

    def close(self) -> None:
        """Stop its readers, and let go of its tables."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def _make_ranks(
    solver: SolverParser, config_file: str, use_model_oversubscriber: bool, temp_embedding_dir: str
) -> Ranks:
    """Make the ranks; what loads torch is imported here, so that a program of several ranks does not load it too."""
    check_engine()
    place = launched(os.environ)
    check_ranks(solver, place)
    if place is None and solver.num_ranks > 1:
        ranks = ChildRanks(solver.num_ranks)
        try:
            ranks.make_engines(
                solver,
                config_file=config_file,
                use_model_oversubscriber=use_model_oversubscriber,
                temp_embedding_dir=temp_embedding_dir,
            )
        except HugeCtrError:
            ranks.close()
            raise
        return ranks
    from hugectr.process_group import join_alone, join_launched
    from hugectr.rank_engine import RankEngine

    rank = join_alone(solver) if place is None else join_launched(solver, place)
    return OwnRank(RankEngine(solver, config_file, use_model_oversubscriber, temp_embedding_dir, rank))


class DataReader:
    """A session's reader of training or evaluation data."""

    def __init__(self, ranks: Ranks, which: str) -> None:
        """Name the data."""
        self._ranks, self._which = ranks, which

    def set_source(self, file_name: str = "") -> None:
        """Read from the start of a file list, or of a Raw file; '' is the one before.

        Raises:
            HugeCtrError: the session does not train in epochs, or the source cannot be read.
        """
        if not isinstance(file_name, str):
            raise HugeCtrError(f"file_name is {file_name!r}; expected the name of a file")
        self._ranks.call("set_source", self._which, file_name)


class DataReader32(DataReader):
    """Of data with 32-bit keys."""


class DataReader64(DataReader):
    """Of data with 64-bit keys."""


class ModelOversubscriber:
    """Keeps only the rows in memory that the next part of the data looks up."""

    def __init__(self, ranks: Ranks) -> None:
        """``Session.get_model_oversubscriber`` makes it."""
        self._ranks = ranks

    def update(self, keyset_file: str | Sequence[str]) -> None:
        """Load the rows of a keyset, and store the others.

        Args:
            keyset_file: one file for all embedding layers, or a list with one for each.

        Raises:
            HugeCtrError: a file cannot be read, their number is not that of the layers, or the rows are too many.
        """
        keysets = keyset_file if isinstance(keyset_file, str) else list(keyset_file)
        self._ranks.call("update_keyset", keysets)


class Session:
    """A model in training.

    Several GPUs in the solver's vvgpu are as many ranks: processes that the session starts and ends, or those that
    torchrun or mpirun started; then every process makes the same calls. Use it in a ``with`` statement, or call
    ``close``, to end the ranks before the program ends.
    """

    def __init__(
        self,
        solver_config: SolverParser,
        config_file: str,
        use_model_oversubscriber: bool = False,
        temp_embedding_dir: str = "",
    ) -> None:
        """Build the model, and load what the solver names.

        Args:
            solver_config: of ``solver_parser_helper``.
            config_file: the optimizer and the layers, JSON.
            use_model_oversubscriber: keep a part of the rows in memory.
            temp_embedding_dir: a folder for the others.

        Raises:
            HugeCtrError: an argument, the configuration or a file to load cannot be used; one line says which.
        """
        if not isinstance(solver_config, SolverParser):
            raise HugeCtrError(f"solver_config is {solver_config!r}; expected what solver_parser_helper returns")
        if not isinstance(use_model_oversubscriber, bool):
            raise HugeCtrError(f"use_model_oversubscriber is {use_model_oversubscriber!r}; expected True or False")
        config = read_configuration(file_name("config_file", config_file))
        check_data(config, solver_config)
        folder = file_name("temp_embedding_dir", temp_embedding_dir)
        if use_model_oversubscriber:
            check_oversubscription(config, folder)
        self._solver, self._uses_oversubscriber = solver_config, use_model_oversubscriber
        self._ranks = _make_ranks(solver_config, os.fspath(config_file), use_model_oversubscriber, folder)

    def __enter__(self) -> Session:
        """Return the session."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Stop reading, and end the ranks that the session started."""
        self._ranks.close()

    def get_model_oversubscriber(self) -> ModelOversubscriber:
        """Return the model oversubscriber.

        Raises:
            HugeCtrError: the session was made without.
        """
        if not self._uses_oversubscriber:
            raise HugeCtrError("the session was made without use_model_oversubscriber=True")
        return ModelOversubscriber(self._ranks)

    def _reader(self, which: str) -> DataReader32 | DataReader64:
        kind = DataReader64 if self._solver.i64_input_key else DataReader32
        return kind(self._ranks, which)

    def get_data_reader_train(self) -> DataReader32 | DataReader64:
        """Return the reader of the training data."""
        return self._reader("train")

    def get_data_reader_eval(self) -> DataReader32 | DataReader64:
        """Return the reader of the evaluation data."""
        return self._reader("eval")

    def start_data_reading(self) -> None:
        """Start both readers; needed before ``train`` with repeat_dataset, and not allowed without."""
        self._ranks.call("start_data_reading")

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the steps from now on, in all layers.

        As in HugeCTR, embedding layers with an optimizer of their own take it too; until the first call they follow
        that optimizer's schedule.

        Source: HugeCTR, ``Session::set_learning_rate``.
        """
        if isinstance(lr, bool) or not isinstance(lr, numbers.Real) or not 0 <= lr < math.inf:
            raise HugeCtrError(f"lr is {lr!r}; expected a finite number from 0 on, such as 0.001")
        self._ranks.call("set_learning_rate", float(lr))

    def train(self) -> bool:
        """Train on the next batch.

        Returns:
            False where the data of an epoch has ended. Its last batch is what is left, in equal shares.

        Raises:
            HugeCtrError: the reader was not started, or the data is damaged.
        """
        return bool(self._ranks.call("train"))

    def get_current_loss(self) -> float:
        """Return the loss of the last training step, the mean over its batch."""
        return float(self._ranks.call("get_current_loss"))

    def get_skipped_steps(self) -> int:
        """Return the steps that changed no weight, since a gradient overflowed in half precision."""
        return int(self._ranks.call("get_skipped_steps"))

    def check_overflow(self) -> None:
        """Check that every key found a row.

        Raises:
            EmbeddingOverflowError: a table has too few rows; the message names it.
        """
        self._ranks.call("check_overflow")

    def copy_weights_for_evaluation(self) -> None:
        """Evaluate with the dense weights of now, until this is called again."""
        self._ranks.call("copy_weights_for_evaluation")

    def eval(self) -> bool:
        """Evaluate the next batch.

        Returns:
            False where the data of an epoch has ended.
        """
        return bool(self._ranks.call("eval"))

    def get_eval_metrics(self) -> list[tuple[str, float]]:
        """Return (name, value) of each metric over the batches evaluated since the last call.

        Raises:
            HugeCtrError: the data of an epoch has ended, and no batch was evaluated since the last call.
        """
        return [(str(name), float(value)) for name, value in self._ranks.call("get_eval_metrics")]

    def evaluation(
        self, export_predictions_out_file: str = "", export_labels_out_file: str = ""
    ) -> list[tuple[str, float]]:
        """Evaluate max_eval_batches batches, or what is left of an epoch's, and return the metrics.

        Args:
            export_predictions_out_file: predictions are written to it, a sample a line.
            export_labels_out_file: labels, in the same order. '' is no file, for either.

        Raises:
            HugeCtrError: the data of an epoch has ended, or a file cannot be written.
        """
        files = {
            "export_predictions_out_file": export_predictions_out_file,
            "export_labels_out_file": export_labels_out_file,
        }
        names = [file_name(argument, value) for argument, value in files.items()]
        for argument, name in zip(files, names, strict=True):
            check_writable(argument, name)
        metrics = self._ranks.call("evaluation", *names)
        return [(str(name), float(value)) for name, value in metrics]

    def download_params_to_files(self, prefix: str, iter: int) -> None:  # noqa: A002 (HugeCTR's name)
        """Write the model and its optimizers' states.

        Files are ``{prefix}_dense_{iter}.model``, ``{prefix}_opt_dense_{iter}.model`` and, for embedding layer i,
        ``{prefix}{i}_sparse_{iter}.model`` and ``{prefix}{i}_opt_sparse_{iter}.model``.

        Raises:
            HugeCtrError: an argument is not allowed, or the files cannot be written.
        """
        name = file_name("prefix", prefix)
        if isinstance(iter, bool) or not isinstance(iter, numbers.Integral) or iter < 0:
            raise HugeCtrError(f"iter is {iter!r}; expected a whole number from 0 on, such as 1000")
        check_writable("prefix", f"{name}_dense_{iter}.model")
        self._ranks.call("download_params_to_files", name, int(iter))
