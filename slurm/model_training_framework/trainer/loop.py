"""The phases of training: each does one thing, says which comes next, and leaves the run at a safe point.

Between two phases everything that decides the future is in ``state``, the model, the optimizer, the gradients and the
random number generators, so a checkpoint may be taken there and nowhere else.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from model_training_framework.trainer.callbacks import CallbackList
from model_training_framework.trainer.config import GenericTrainerConfig
from model_training_framework.trainer.data import EpochData
from model_training_framework.trainer.hang_guard import HangGuard
from model_training_framework.trainer.ranks import Ranks
from model_training_framework.trainer.reporting import Reporter
from model_training_framework.trainer.rng import capture_rng, derive_seed, restore_rng, seed_all
from model_training_framework.trainer.state import ResumeState, TrainerPhase, TrainMicroState, ValMicroState
from model_training_framework.trainer.steps import batch_size, checked_result, is_scalar, takes_metric

END = object()


class TrainingLoop(ABC):
    """Epochs, batches, steps and validations; what a step is, and how it is saved, is a derived class's."""

    config: GenericTrainerConfig
    state: ResumeState
    fabric: Any
    model: Any
    module: Any
    optimizer: Any
    scheduler: Any
    metrics: dict[str, float]
    callbacks: CallbackList
    ranks: Ranks
    reporter: Reporter
    hang_guard: HangGuard
    seed: int
    train_data: EpochData
    val_data: EpochData | None

    def __init__(self) -> None:
        """Begin without data."""
        self._batches: Iterator[Any] | None = None
        self._val_batches: Iterator[Any] | None = None
        self._all_data: list[EpochData] = []
        self._modes: list[tuple[Any, bool]] = []
        self._validated_step = -1
        self._is_stopping = False
        self._is_safe = False
        self.last_loss: Any = None
        self._started = self._val_started = time.perf_counter()
        self._do: dict[TrainerPhase, Callable[[], None]] = {
            TrainerPhase.INIT: self._start,
            TrainerPhase.TRAIN_START_EPOCH: self._start_epoch,
            TrainerPhase.TRAIN_BATCH_FORWARD: self._train_batch,
            TrainerPhase.TRAIN_BATCH_OPTIM_STEP: self._optimizer_step,
            TrainerPhase.VAL_START_EPOCH: self._start_validation,
            TrainerPhase.VAL_BATCH_FORWARD: self._validate_batch,
            TrainerPhase.EPOCH_END: self._end_epoch,
        }

    @property
    def data_rank(self) -> int:
        """Return which share of the samples this rank gets: ranks that compute one model together get the same."""
        return self.ranks.rank

    @property
    def random_rank(self) -> int:
        """Return which random numbers training draws on this rank: ranks with the same draw alike."""
        return self.ranks.rank

    def make_data(self, loader: Any, purpose: str) -> EpochData:
        """Return the batches of a loader, in an order of the run's seed and a purpose of their own."""
        seed = derive_seed(self.seed, purpose)
        grace_s, is_exact = self.config.grace_period_seconds, purpose == "val"
        data = EpochData(loader, self.fabric, seed, grace_s, self.data_rank, is_exact=is_exact)
        self._all_data.append(data)
        return data

    @abstractmethod
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return a mapping with the loss of a batch."""

    @abstractmethod
    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return a mapping of metrics of a batch."""

    def validation_weight(self, batch: Any) -> int:
        """Return how much a batch counts in a validation's means: its samples by default."""
        return batch_size(batch)

    @abstractmethod
    def forward_backward(self, batch: Any, batch_idx: int, share: float) -> dict[str, Any]:
        """Add the gradients of a batch, times its share of the optimizer step, and return the step's result."""

    @abstractmethod
    def update(self) -> None:
        """Change the weights by the gradients, and drop these."""

    @abstractmethod
    def at_safe_point(self) -> None:
        """Leave, save or write what is due."""

    @abstractmethod
    def save_if_due(self, is_epoch_end: bool = False) -> None:
        """Save a checkpoint where the settings say so."""

    def run_phases(self) -> None:
        """Go from phase to phase until training is complete."""
        state = self.state
        try:
            while state.phase is not TrainerPhase.TRAINING_COMPLETE:
                self._is_safe = True
                self.hang_guard.passed(state.phase.name)
                self.at_safe_point()
                self._is_safe = False
                self._do[state.phase]()
        finally:
            self._drop_batches()

    def stop(self) -> None:
        """End training after this optimizer step, with a validation and a checkpoint; call it on every rank."""
        self._is_stopping = True

    @property
    def is_done(self) -> bool:
        """Return whether no further optimizer step is to be taken."""
        steps, epochs = self.config.max_steps, self.config.max_epochs
        is_at_end = steps is not None and self.state.global_step >= steps
        return self._is_stopping or is_at_end or (epochs is not None and self.state.epoch >= epochs)

    @property
    def train(self) -> TrainMicroState:
        """Return the position in the epoch."""
        assert self.state.train is not None
        return self.state.train

    def _enter(self, phase: TrainerPhase) -> None:
        self.state.phase = phase
        self.hang_guard.passed(phase.name)
        for hook in self.callbacks.overriding("on_phase"):
            hook(self, phase)

    def _drop_batches(self) -> None:
        """End the workers that fetch batches."""
        for batches in (self._batches, self._val_batches):
            if isinstance(batches, Generator):
                batches.close()
        self._batches = self._val_batches = None
        for data in self._all_data:
            data.close()

    def _start(self) -> None:
        self.state.phase = TrainerPhase.TRAINING_COMPLETE if self.is_done else TrainerPhase.TRAIN_START_EPOCH

    def _start_epoch(self) -> None:
        self._enter(TrainerPhase.TRAIN_START_EPOCH)
        self.state.phase = TrainerPhase.TRAIN_BATCH_FORWARD
        self._hook("on_epoch_start", self.state.epoch)

    def _hook(self, name: str, *args: Any) -> None:
        """Call a hook outside of a batch, where a checkpoint may be taken."""
        self._is_safe = True
        with self.hang_guard.paused():
            self.callbacks.call(name, self, *args)
        self._is_safe = False

    def _window(self) -> int:
        """Return how many batches this optimizer step takes: fewer at the end of an epoch whose length is known."""
        train, size = self.train, self.config.gradient_accumulation_steps
        if self.train_data.num_batches is None:
            return size
        return min(size, self.train_data.num_batches - (train.batch_idx - train.micro_step))

    def _train_batch(self) -> None:
        train = self.train
        if not train.micro_step:
            self._started = time.perf_counter()
        if self._batches is None:
            self._batches = iter(self.train_data.batches(self.state.epoch, train.batch_idx))
        for hook in self.callbacks.overriding("on_batch_fetch"):
            hook(self)
        batch = next(self._batches, END)
        if batch is END:
            self._end_of_batches()
            return
        for hook in self.callbacks.overriding("on_batch_fetched"):
            hook(self, batch)
        for hook in self.callbacks.overriding("on_batch_start"):
            hook(self, train.batch_idx)
        window = self._window()
        is_last = train.micro_step + 1 >= window
        if is_last:
            result = self.forward_backward(batch, train.batch_idx, 1.0 / window)
        else:
            with self.without_sync():
                result = self.forward_backward(batch, train.batch_idx, 1.0 / window)
        loss = result["loss"].detach()
        train.loss_sum = loss if train.loss_sum is None else train.loss_sum + loss
        if self.callbacks.overriding("on_batch_end"):
            train.logs = {name: value for name, value in result.items() if is_scalar(value)} | {"loss": loss}
        train.batch_idx += 1
        train.micro_step += 1
        if is_last:
            self.state.phase = TrainerPhase.TRAIN_BATCH_OPTIM_STEP
        else:
            self._end_batch()

    def without_sync(self) -> Any:
        """Return a context in which gradients stay on their rank, where that is possible and of use."""
        return nullcontext()

    def _end_of_batches(self) -> None:
        """The loader gave its last batch; what it left of an accumulation is a step of its own."""
        train = self.train
        train.is_exhausted = True
        self._batches = None
        if train.micro_step:
            self.state.phase = TrainerPhase.TRAIN_BATCH_OPTIM_STEP
        else:
            self._finish_epoch()

    def _finish_epoch(self) -> None:
        """Go on with a validation where one is due, and with the end of the epoch."""
        every = self.config.validate_every_n_epochs
        # where only the end is validated, that is the end of the last epoch too, which is_done tells of after it
        is_due = (self.state.epoch + 1) % (every or self.config.max_epochs or sys.maxsize) == 0 or self.is_done
        is_due = is_due and self.val_data is not None
        if is_due and self._validated_step != self.state.global_step:
            self.state.val = ValMicroState(ends_epoch=True)
            self.state.phase = TrainerPhase.VAL_START_EPOCH
        else:
            self.state.phase = TrainerPhase.EPOCH_END

    def _optimizer_step(self) -> None:
        train, state = self.train, self.state
        self._enter(TrainerPhase.TRAIN_BATCH_OPTIM_STEP)
        lr = float(self.optimizer.param_groups[0]["lr"])
        self.update()
        if self.scheduler is not None and self.config.scheduler_interval == "step" and not takes_metric(self.scheduler):
            self.scheduler.step()
        state.global_step += 1
        self.hang_guard.stepped()
        loss = train.loss_sum if train.micro_step == 1 else train.loss_sum / train.micro_step
        train.micro_step, train.loss_sum = 0, None
        self.last_loss = loss
        self.reporter.step(state, loss, lr, time.perf_counter() - self._started)
        for hook in self.callbacks.overriding("on_step_end"):
            hook(self, state.global_step)
        self._end_batch()

    def _end_batch(self) -> None:
        """Tell callbacks of a batch, and say what comes next."""
        train, state = self.train, self.state
        self._enter(TrainerPhase.TRAIN_BATCH_END)
        is_step = not train.micro_step
        state.phase = TrainerPhase.TRAIN_BATCH_FORWARD
        if is_step and self._is_validation_due():
            state.phase = TrainerPhase.VAL_START_EPOCH
            state.val = ValMicroState(ends_epoch=False)
        values, train.logs = train.logs, {}
        if values:  # not again where a loader's end left a step to do
            logs = {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
            logs |= {"global_step": state.global_step, "epoch": state.epoch, "is_step": is_step}
            self._hook("on_batch_end", train.batch_idx - 1, logs)
        if not is_step:
            return
        if self.is_done:
            train.is_exhausted = train.is_exhausted or train.batch_idx == self.train_data.num_batches
            state.val = None
            self._finish_epoch()
        elif state.phase is TrainerPhase.TRAIN_BATCH_FORWARD:
            if train.is_exhausted:
                self._finish_epoch()
            self.save_if_due()

    def _is_validation_due(self) -> bool:
        every = self.config.validate_every_n_steps
        return self.val_data is not None and every is not None and self.state.global_step % every == 0

    def _start_validation(self) -> None:
        """Set training aside: its random numbers and the modules' modes."""
        assert self.state.val is not None
        self._enter(TrainerPhase.VAL_START_EPOCH)
        self.state.val.train_rng = capture_rng()
        seed_all(derive_seed(self.seed, "validation", self.state.global_step, self.random_rank))
        self.state.phase = TrainerPhase.VAL_BATCH_FORWARD

    def _begin_val_batches(self) -> Iterator[Any]:
        assert self.val_data is not None
        assert self.state.val is not None
        self._val_started = time.perf_counter()
        self.reporter.flush(self.train)
        self._modes = [(module, module.training) for module in self.model.modules()]  # wrappers too
        self.model.eval()
        return iter(self.val_data.batches(self.state.global_step, self.state.val.batch_idx))

    def _validate_batch(self) -> None:
        val = self.state.val
        assert val is not None
        if self._val_batches is None:
            self._val_batches = self._begin_val_batches()
        batch = next(self._val_batches, END)
        is_over = batch is END
        if self.ranks.sum(torch.tensor(int(not is_over))).item() == 0:
            self._end_validation()
            return
        if is_over:  # others have more, and a forward pass may need all ranks
            assert self.val_data is not None
            batch = self.val_data.filler()
        with torch.no_grad():
            result = checked_result(self.validation_step(batch, val.batch_idx), "validation_step")
        samples = 0 if is_over else self.validation_weight(batch)
        for name, value in result.items():
            if is_scalar(value):
                mean = torch.as_tensor(value).detach().reshape(()).to("cpu", torch.float64)
                summed = mean * samples if samples else torch.zeros_like(mean)  # the mean over nothing may be NaN
                val.sums[name] = val.sums[name] + summed if name in val.sums else summed
        val.num_samples += samples
        val.batch_idx += 1

    def _end_validation(self) -> None:
        """Average over ranks, and go on with training as if nothing had been in between."""
        val, state = self.state.val, self.state
        assert val is not None
        assert val.train_rng is not None
        self._val_batches = None
        for module, is_training in self._modes:
            module.training = is_training
        restore_rng(val.train_rng)
        names = sorted(val.sums)
        samples = torch.tensor(float(val.num_samples), dtype=torch.float64)
        totals = self.ranks.sum(torch.stack([samples, *(val.sums[name] for name in names)])).tolist()
        labels = [name if name.startswith("val_") else f"val_{name}" for name in names]
        count = totals[0] or math.nan
        self.metrics = {label: total / count for label, total in zip(labels, totals[1:], strict=True)}
        self._validated_step = state.global_step
        self.reporter.validation(state, self.metrics, time.perf_counter() - self._val_started)
        ends_epoch, state.val = val.ends_epoch, None
        state.phase = TrainerPhase.EPOCH_END if ends_epoch else TrainerPhase.TRAIN_BATCH_FORWARD
        self._hook("on_validation_end", self.metrics)
        if not ends_epoch:
            if self.is_done or self.train.is_exhausted:
                self._finish_epoch()
            self.save_if_due()

    def _end_epoch(self) -> None:
        state, train = self.state, self.train
        self._enter(TrainerPhase.EPOCH_END)
        self.reporter.flush(train)
        if self.scheduler is not None and train.is_exhausted:
            self._step_scheduler()
        logs = dict(self.metrics)
        if train.epoch_steps:
            logs["train_loss"] = train.epoch_loss / train.epoch_steps
        logs["lr"] = float(self.optimizer.param_groups[0]["lr"])
        epoch = state.epoch
        if train.is_exhausted:
            state.epoch += 1
            state.train = TrainMicroState()
        state.phase = TrainerPhase.TRAINING_COMPLETE if self.is_done else TrainerPhase.TRAIN_START_EPOCH
        self._hook("on_epoch_end", epoch, logs)
        if self.is_done:  # a callback may have stopped it
            state.phase = TrainerPhase.TRAINING_COMPLETE
        else:
            self.save_if_due(is_epoch_end=True)

    def _step_scheduler(self) -> None:
        if takes_metric(self.scheduler):
            monitor = self.config.monitor or "val_loss"
            if monitor in self.metrics:
                self.scheduler.step(self.metrics[monitor])
        elif self.config.scheduler_interval == "epoch":
            self.scheduler.step()
