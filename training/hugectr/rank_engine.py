"""Training on one rank: reader, embeddings, dense network and optimizers of one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hugectr.checkpoint import Checkpoint, snapshot, snapshot_of
from hugectr.data.batch import Batch, SparseInput
from hugectr.data.readers import make_reader
from hugectr.data.sample_kind import data_of
from hugectr.dense.files import Progress
from hugectr.dense.module import Position
from hugectr.dense.network import DenseNetwork
from hugectr.dense.optimizers import DenseOptimizer
from hugectr.dense.reduction import GradientReduction, over_group
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from hugectr.exceptions import HugeCtrError
from hugectr.metric_names import parse_metrics
from hugectr.metrics import Evaluation
from hugectr.model_oversubscriber import ModelOversubscriber
from hugectr.plans import plan_of
from hugectr.preconditions import check_data
from hugectr.schedule import read_configuration
from hugectr.solver import SolverParser
from predictor.recommender.workload.layers import LossLayer
from predictor.replay.files.measured_step import BACKWARD, FORWARD, OPTIMIZER


def write_columns(path: Path, values: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Write one line per sample, its values with blanks between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, values, fmt="%.9g")


class Regularizer:
    """L1: λ/batch · Σ|w|; L2: λ/(2 · batch) · Σw²; over all weights of the dense network."""

    def __init__(self, loss: LossLayer | None, batch_size: int) -> None:
        """Take what the loss layer says."""
        self._kind = loss.regularizer if loss is not None and loss.weight else ""
        self._factor = loss.weight / batch_size if loss is not None else 0.0

    def term(self, weights: torch.Tensor) -> torch.Tensor | float:
        """Return what it adds to the loss."""
        if self._kind == "L1":
            return weights.abs().sum() * self._factor
        if self._kind == "L2":
            return torch.dot(weights, weights) * (0.5 * self._factor)
        return 0.0

    def add_gradient(self, gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], scale: float) -> None:
        """Add its gradient, times the scale of the others, in place."""
        if not self._kind:
            return
        with torch.no_grad():
            for gradient, weight in zip(gradients, weights, strict=True):
                gradient.add_(weight.sign() if self._kind == "L1" else weight, alpha=self._factor * scale)


# Matrix products in fp16 have no fast kernels on CPUs, those in bf16 have.
HALF = {"cuda": torch.float16, "cpu": torch.bfloat16}


class Rank(NamedTuple):
    """A process of a run.

    Attributes:
        number: from 0.
        size: number of ranks.
        group: of torch.distributed; None is the default group.
    """

    number: int
    size: int
    device: torch.device
    group: Any = None


class RankEngine:
    """One rank's part of a session. All ranks call the same methods in the same order, since most are collectives.

    Arguments and results are numbers, text and lists of them, so that calls can travel between processes.

    Attributes:
        skipped_steps: training steps whose gradients overflowed in half precision, which changed no weight.
        mark: called where each part of a training step begins, for who measures it.
    """

    def __init__(
        self,
        solver: SolverParser,
        config_file: str,
        use_model_oversubscriber: bool,
        temp_embedding_dir: str,
        rank: Rank,
    ) -> None:
        """Build the model, and load what the solver names.

        Raises:
            HugeCtrError: the configuration, a plan or a file to load cannot be used.
        """
        self._solver, self._rank = solver, rank
        config = read_configuration(config_file)
        self._model = model = config.model
        assert model.optimizer is not None
        self._data = data_of(config)
        check_data(config, solver)
        half = HALF[rank.device.type] if solver.use_mixed_precision else None
        over = over_group(rank.group, rank.size)
        self._network = DenseNetwork(model, device=rank.device, half=half, over=over)
        self._network.initialise(solver.seed)
        self._eval_network = DenseNetwork(model, device=rank.device, half=half).eval()
        self._embeddings = ShardedEmbeddings(
            model,
            plan_of(model, rank.size, solver.sharding_plan),
            device=rank.device,
            seed=solver.seed,
            output_dtype=torch.float32 if half is None else half,
            group=rank.group,
        )
        weights = self._network.weights.every()
        self._reduction = GradientReduction(weights, group=rank.group, num_ranks=rank.size)
        self._optimizer = DenseOptimizer(model.optimizer, weights)
        self._regularizer = Regularizer(model.loss, solver.batchsize)
        if solver.enable_tf32_compute and rank.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        self._oversubscriber: ModelOversubscriber | None = None
        is_64_bit = solver.i64_input_key
        if use_model_oversubscriber:
            self._oversubscriber = ModelOversubscriber(self._embeddings, temp_embedding_dir, is_64_bit=is_64_bit)
        self._checkpoint = Checkpoint(self._network, self._optimizer, self._embeddings, is_64_bit=is_64_bit)
        progress = self._checkpoint.load(snapshot_of(solver))
        self._updates, self.skipped_steps = progress.steps, progress.skipped_steps
        self.mark = _ignore
        self._eval_network.copy_from(self._network)
        self._learning_rate, self._is_rate_set = model.optimizer.schedule.base, False
        self._loss: torch.Tensor | None = None
        self._evaluation = Evaluation(parse_metrics(solver.eval_metrics))
        self._readers = {"train": self._reader("train"), "eval": self._reader("eval")}
        self._started = {"train": False, "eval": False}
        self._is_eval_read = False

    def _reader(self, which: str) -> Any:
        data, solver = self._data, self._solver
        is_training = which == "train"
        return make_reader(
            data,
            source=data.source if is_training else data.eval_source,
            batch_size=solver.batchsize if is_training else solver.batchsize_eval,
            rank=self._rank.number,
            num_ranks=self._rank.size,
            i64_input_key=solver.i64_input_key,
            repeat=solver.repeat_dataset,
            num_samples=data.num_samples if is_training else data.eval_num_samples,
        )

    def start_data_reading(self) -> None:
        """Start both readers.

        Raises:
            HugeCtrError: data is read in epochs, whose sources ``set_source`` names.
        """
        if not self._solver.repeat_dataset:
            raise HugeCtrError("start_data_reading is for repeat_dataset=True; in epochs use set_source of a reader")
        for which, reader in self._readers.items():
            reader.start()
            self._started[which] = True

    def set_source(self, which: str, file_name: str) -> None:
        """Read the "train" or "eval" data from the start of a source; '' is the one before.

        Raises:
            HugeCtrError: data repeats, or cannot be read.
        """
        if self._solver.repeat_dataset:
            raise HugeCtrError("set_source is for epochs; set repeat_dataset=False in solver_parser_helper")
        self._readers[which].set_source(file_name)
        self._started[which] = True
        if which == "eval":
            self._is_eval_read = False

    def _next(self, which: str) -> Batch | None:
        if not self._started[which]:
            call = "start_data_reading()" if self._solver.repeat_dataset else f"get_data_reader_{which}().set_source()"
            raise HugeCtrError(f"{which} data is not being read yet; call {call} first")
        batch: Batch | None = self._readers[which].next()
        return batch if batch is None else _on(batch, self._rank.device)

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the steps from now on, in all layers."""
        self._learning_rate, self._is_rate_set = float(rate), True

    def train(self) -> bool:
        """Train on the next batch.

        Returns:
            False at the end of the data, whose last batch is what is left, in equal shares.
        """
        batch = self._next("train")
        if batch is None:
            return False
        self._network.train()
        self._embeddings.train()
        self.mark(FORWARD)
        pooled = self._embeddings(batch.sparse)
        step = self._updates + self.skipped_steps + 1
        position = Position(self._solver.seed, step, self._rank.number * batch.num_samples)
        output = self._network(batch.label, batch.dense, pooled.wait, position)
        assert output.loss is not None
        loss = output.loss.total / batch.num_samples
        self.mark(BACKWARD)
        (loss * self._solver.scaler).backward()
        self._update(loss)
        return True

    def _update(self, loss: torch.Tensor) -> None:
        """Reduce gradients over ranks, and update all weights and rows unless a gradient overflowed."""
        scaler, ranks = self._solver.scaler, self._rank.size
        flag = None
        if self._solver.use_mixed_precision:
            flag = torch.tensor(float(not self._embeddings.has_finite_gradients()), device=loss.device)
        gradients, extras = self._reduction.finish(loss, flag)
        self._loss = extras[0] / ranks + self._regularizer.term(self._network.weights.flat)
        if self._solver.use_mixed_precision and (extras[1] > 0 or not _are_finite(gradients)):
            self.skipped_steps += 1
            self._embeddings.drop_gradients()
            return
        self._updates += 1
        scale = scaler * ranks
        self._regularizer.add_gradient(gradients, self._network.weights.every(), scale)
        self.mark(OPTIMIZER)
        self._optimizer.step(gradients, self._learning_rate, self._updates, scale)
        self.mark(BACKWARD)  # whose end the update of rows is
        self._embeddings.update(self._learning_rate, scaler, self._updates, is_of_all=self._is_rate_set)

    def get_current_loss(self) -> float:
        """Return the last training step's loss, the mean over its global batch.

        Raises:
            HugeCtrError: no step was trained.
        """
        if self._loss is None:
            raise HugeCtrError("get_current_loss: no step was trained; call train() first")
        return float(self._loss)

    def get_skipped_steps(self) -> int:
        """Return the training steps whose gradients overflowed."""
        return self.skipped_steps

    def check_overflow(self) -> None:
        """Check that every key found a row.

        Raises:
            EmbeddingOverflowError: a table has too few rows.
        """
        self._embeddings.check_overflow()

    def copy_weights_for_evaluation(self) -> None:
        """Evaluate with the dense weights of now, until this is called again."""
        self._eval_network.copy_from(self._network)

    def eval(self) -> bool:
        """Evaluate the next batch.

        Returns:
            False at the end of the data.
        """
        batch = self._next("eval")
        if batch is None:
            self._is_eval_read = True
            return False
        self._embeddings.eval()
        with torch.no_grad():
            pooled = self._embeddings(batch.sparse)
            position = Position(self._solver.seed, 0, 0)
            output = self._eval_network(batch.label, batch.dense, pooled.wait, position)
        assert output.loss is not None
        self._evaluation.add(output.loss.predictions, batch.label, float(output.loss.total))
        return True

    def get_eval_metrics(self) -> list[tuple[str, float]]:
        """Return the metrics of all batches since the last call, over all ranks, and begin anew.

        Raises:
            HugeCtrError: no batch was evaluated since, as the data has ended.
        """
        self._check_evaluated("get_eval_metrics")
        metrics, _, _ = self._metrics()
        return metrics

    def _check_evaluated(self, call: str) -> None:
        """Refuse an evaluation of nothing at the end of the data.

        Where ``set_source`` has followed that end, there is none to refuse: HugeCTR's sample program asks for metrics
        then, also where the data ended with the batch before.
        """
        if self._is_eval_read and not self._evaluation.num_samples:
            raise HugeCtrError(
                f"{call}: the evaluation data has ended, and no batch of it is left; call "
                "get_data_reader_eval().set_source() first"
            )

    def _metrics(self) -> tuple[list[tuple[str, float]], Any, Any]:
        group, size = self._rank.group, self._rank.size
        predictions, labels = self._evaluation.gathered(group, size)
        loss, samples = self._evaluation.totals(group, size)
        metrics = self._evaluation.values(predictions, labels, loss, samples)
        self._evaluation.clear()
        return metrics, predictions, labels

    def evaluation(self, predictions_file: str, labels_file: str) -> list[tuple[str, float]]:
        """Evaluate max_eval_batches batches, or what is left of the data; write the files that are named.

        Raises:
            HugeCtrError: nothing is left.
        """
        self._evaluation.clear()
        for _ in range(self._solver.max_eval_batches):
            if not self.eval():
                break
        self._check_evaluated("evaluation")
        metrics, predictions, labels = self._metrics()
        for file, values in ((predictions_file, predictions), (labels_file, labels)):
            if file and self._rank.number == 0:
                write_columns(Path(file), values)
        return metrics

    def download_params_to_files(self, prefix: str, iteration: int) -> None:
        """Write the model and the states of all optimizers."""
        assert self._model.optimizer is not None
        progress = Progress(
            optimizer=self._model.optimizer.kind,
            steps=self._updates,
            skipped_steps=self.skipped_steps,
            seed=self._solver.seed,
        )
        self._checkpoint.save(snapshot(prefix, iteration, len(self._model.embeddings)), progress)

    def update_keyset(self, keyset: str | Sequence[str]) -> None:
        """Load the rows of a keyset, and store the others.

        Raises:
            HugeCtrError: the session has no model oversubscriber, or the keyset cannot be used.
        """
        if self._oversubscriber is None:
            raise HugeCtrError("the session was made without use_model_oversubscriber=True")
        self._oversubscriber.update(keyset if isinstance(keyset, str) else list(keyset))

    def close(self) -> None:
        """Stop reading, and remove the files of rows that are not loaded."""
        for reader in self._readers.values():
            reader.close()
        if self._oversubscriber is not None:
            self._oversubscriber.close()


def _ignore(part: str) -> None:
    """Measure nothing."""


def _on(batch: Batch, device: torch.device) -> Batch:
    if device.type == "cpu":
        return batch
    sparse = {
        name: SparseInput(given.keys.to(device, non_blocking=True), given.lengths.to(device, non_blocking=True))
        for name, given in batch.sparse.items()
    }
    return Batch(batch.label.to(device, non_blocking=True), batch.dense.to(device, non_blocking=True), sparse)


def _are_finite(gradients: Sequence[torch.Tensor]) -> bool:
    sums = [gradient.sum() for gradient in gradients]
    return not sums or bool(torch.isfinite(torch.stack(sums)).all())
