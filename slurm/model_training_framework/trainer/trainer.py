"""GenericTrainer: training that goes on where it stopped, bit by bit, whatever stopped it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from model_training_framework.trainer.callbacks import CallbackList, TrainingCallback
from model_training_framework.trainer.checkpoint import Checkpointer, Snapshot, read_state
from model_training_framework.trainer.checkpoint_store import CheckpointStore, Stored
from model_training_framework.trainer.config import GenericTrainerConfig
from model_training_framework.trainer.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    PreemptionTimeoutError,
    TrainerError,
)
from model_training_framework.trainer.folder_lock import held
from model_training_framework.trainer.hang_guard import HangGuard
from model_training_framework.trainer.health_callback import HealthCallback
from model_training_framework.trainer.identity import Given, identity_of
from model_training_framework.trainer.loggers import ScalarLogger
from model_training_framework.trainer.preemption import EXIT_RESUMABLE, PreemptionGuard
from model_training_framework.trainer.ranks import Ranks
from model_training_framework.trainer.reporting import Reporter
from model_training_framework.trainer.resuming import Resuming
from model_training_framework.trainer.rng import capture_rng, derive_seed, preserved_rng, seed_all
from model_training_framework.trainer.setup import (
    is_replicating,
    is_sharding,
    make_fabric,
    reproducible,
    set_up_sharded,
    set_up_unsharded,
    shard_fully,
    sharding_strategy,
)
from model_training_framework.trainer.state import ResumeState, TrainerPhase, TrainMicroState
from model_training_framework.trainer.steps import checked_result, default_loss

log = logging.getLogger(__name__)


class GenericTrainer(Resuming):
    """Trains a model on Lightning Fabric.

    Derive from it and override ``training_step`` and ``validation_step``; the other public methods up to ``update``,
    ``make_data``, ``snapshot`` and ``read_snapshot`` are for other parallelisms.

    A run that is killed goes on from its newest good checkpoint; one that gets SIGUSR1 or SIGTERM saves at the next
    safe point and exits with status 75. Losses and weights are then, on the same hardware and libraries, those of a
    run that nothing disturbed, bit by bit. What builds the model must do it alike each time, so seed it before.

    Attributes:
        identity: by name, what decides the steps, which a run has in common with the checkpoint that it goes on from
            or names in ``resume_changes``; what a derived trainer puts in before ``fit`` counts as well.
    """

    def __init__(self, config: GenericTrainerConfig) -> None:
        """Prepare the engine; nothing is started before ``fit``.

        Raises:
            TrainerError: the devices, the precision or the strategy cannot be had.
        """
        super().__init__()
        self.config = config
        self.fabric = make_fabric(config, self.make_strategy())
        self.callbacks = CallbackList()
        self.loggers: list[ScalarLogger] = []
        self.state = ResumeState(TrainerPhase.INIT, epoch=0, global_step=0, train=TrainMicroState())
        self.metrics = {}
        self.identity: dict[str, Any] = {}
        self.model = self.module = self.optimizer = self.scheduler = None
        self._resume_from: Path | None = None
        self._guard = PreemptionGuard(config.grace_period_seconds)
        self._checkpointer: Checkpointer | None = None
        self._saved_at = time.monotonic()
        self._is_save_due = False
        self._last_saved: tuple[int, TrainerPhase] | None = None
        self._holds_folders = False

    def add_callback(self, callback: TrainingCallback) -> None:
        """Add a callback; hooks are called in the order of adding."""
        self.callbacks.add(callback)

    def add_logger(self, logger: ScalarLogger) -> None:
        """Add a logger of steps' and validations' numbers, which are those of steps.jsonl; rank 0 calls it."""
        self.loggers.append(logger)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return a mapping with the loss of a batch. Override it where (inputs, targets) have no obvious loss."""
        return {"loss": default_loss(self.model, batch)}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return metrics of a batch, means over its samples; the loss alone by default."""
        return {"loss": default_loss(self.model, batch)}

    def make_strategy(self) -> Any:
        """Return Fabric's strategy, or its name."""
        return sharding_strategy(self.parallelize) if self.config.strategy == "fsdp" else self.config.strategy

    def parallelize(self, module: nn.Module, mesh: Any) -> nn.Module:
        """Shard a module over the mesh's ranks, where the strategy is fsdp."""
        return shard_fully(module, mesh)

    def set_up_model(self, model: nn.Module, optimizer: Optimizer) -> tuple[Any, Any]:
        """Return model and optimizer on their devices, with the strategy's parallelism."""
        if is_sharding(self.fabric):
            return set_up_sharded(self.fabric, model, optimizer)
        return set_up_unsharded(self.fabric, model, optimizer)

    def forward_backward(self, batch: Any, batch_idx: int, share: float) -> dict[str, Any]:
        """Add the gradients of a batch, times its share of the optimizer step, and return what the step returned."""
        self._enter(TrainerPhase.TRAIN_BATCH_FORWARD)
        result = checked_result(self.training_step(batch, batch_idx), "training_step")
        self._enter(TrainerPhase.TRAIN_BATCH_BACKWARD)
        loss = result["loss"]
        for hook in self.callbacks.overriding("on_before_backward"):
            hook(self, loss)
        self.fabric.backward(loss if share == 1.0 else loss * share)
        return result

    def update(self) -> None:
        """Clip the gradients, step the optimizer and drop the gradients."""
        if self.config.max_grad_norm is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.max_grad_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def without_sync(self) -> Any:
        """Leave DDP's gradients on their rank until the last batch of a step."""
        if is_replicating(self.fabric) and self.train_data.num_batches is not None:
            return self.fabric.no_backward_sync(self.model)
        return super().without_sync()

    def fit(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        train_loader: Any,
        val_loader: Any = None,
        scheduler: Any = None,
    ) -> None:
        """Train to the end, from the newest good checkpoint where there is one.

        Raises:
            TrainerError: the run cannot begin or go on.
            RunRefusedError: a run that is alive has the folder, or the checkpoint is of other settings or data.
            SystemExit: with status 75, after a preemption; the next start goes on.
        """
        config = self.config
        with self._guard, reproducible(config.deterministic, config.benchmark):
            self.fabric.launch()
            self.ranks = Ranks(self.fabric.global_rank, self.fabric.world_size, config.checkpoint_timeout_seconds)
            self.hang_guard = HangGuard(
                self.ranks, config.rank_timeout_seconds, config.grace_period_seconds, config.experiment_dir
            )
            with self._holding_folders(), self.hang_guard:
                self._given = Given.of(optimizer, scheduler)
                if self.config.health and not any(isinstance(one, HealthCallback) for one in self.callbacks):
                    self.add_callback(HealthCallback())  # the last, so that the others keep their places
                self._set_up(model, optimizer, scheduler)
                self._identity = {
                    **identity_of(config, self._given, optimizer, scheduler, train_loader, is_sharding(self.fabric)),
                    **self.identity,
                }
                self._train(train_loader, val_loader)

    def _train(self, train_loader: Any, val_loader: Any) -> None:
        stored = self._find_checkpoint()
        content = self.read_snapshot(stored) if stored is not None else None
        self.seed = self._identity["seed"] = self._choose_seed(content)
        seed_all(derive_seed(self.seed, "training", self.random_rank))
        lines = self._restore(stored, content) if stored is not None and content is not None else 0
        self.train_data = self.make_data(train_loader, "train")
        self.val_data = self.make_data(val_loader, "val") if val_loader is not None else None
        try:
            with preserved_rng():  # a start more must not change what training draws
                self._open_reporter(lines)
                self._hook("on_training_start")
            self.run_phases()
            self._finish()
        except BaseException as error:
            self.callbacks.call("on_failure", self, error)
            raise
        finally:
            self.reporter.close()
        self.ranks.settle()

    @contextmanager
    def _holding_folders(self) -> Iterator[None]:
        """Keep other runs from writing where this one writes."""
        if self._holds_folders:
            yield
            return
        config = self.config
        with held([config.experiment_dir, config.checkpoint_folder], self.ranks):
            self._holds_folders = True
            try:
                yield
            finally:
                self._holds_folders = False

    def _set_up(self, model: nn.Module, optimizer: Optimizer, scheduler: Any) -> None:
        store = CheckpointStore.of(self.config)
        if self.ranks.is_first:
            store.prepare()
        self._checkpointer = Checkpointer(store, self.ranks)
        self.reporter = Reporter(self.config, self.ranks, self.loggers)
        self.module, self.scheduler = model, scheduler
        self.model, self.optimizer = self.set_up_model(model, optimizer)
        self._saved_at = time.monotonic()

    def _open_reporter(self, lines: int) -> None:
        try:
            self.reporter.open(self.state, lines)
        except OSError as error:
            raise TrainerError(f"{self.config.steps_file} cannot be written: {error.strerror}") from error

    def _choose_seed(self, content: Snapshot | None) -> int:
        """Return the configured seed, the checkpoint's where that is None, or a new one."""
        if self.config.seed is not None:
            return self.config.seed
        if content is not None:
            return int(content.own["seed"])
        return int(self.ranks.from_first(secrets.randbits(31), "choose a seed"))

    def _find_checkpoint(self) -> Stored | None:
        """Return what to resume from."""
        assert self._checkpointer is not None
        if self._resume_from is None and not self.config.resume:
            return None
        return self._checkpointer.find(self._resume_from)

    def at_safe_point(self) -> None:
        """Leave where a signal came to any rank, and write steps that have waited."""
        due = self.config.save_every_n_minutes
        if self.ranks.world_size == 1 and due is None and not self._guard.signal_name and not self.reporter.is_waiting:
            return
        is_save_due = due is not None and time.monotonic() - self._saved_at > 60.0 * due
        is_asked, is_late, is_save_due = self.ranks.any_of(self._guard.is_requested, self.reporter.is_late, is_save_due)
        self._is_save_due = self._is_save_due or is_save_due
        if is_asked:
            self._leave()
        if is_late or self.reporter.is_full:
            self.reporter.flush(self.state.train)

    def _leave(self) -> None:
        """Save and exit, to be resumed.

        Raises:
            SystemExit: status 75.
            PreemptionTimeoutError: another rank did not save in time.
            CheckpointError: the checkpoint could not be written.
        """
        name = self._guard.signal_name or "a signal to another rank"
        self._drop_batches()
        try:
            path = self.save_checkpoint(emergency=True)
        except CheckpointTimeoutError as error:
            raise PreemptionTimeoutError(f"after {name}: {error}") from error
        if self._guard.remaining_s < 0.0:
            log.warning("the emergency checkpoint took longer than grace_period_seconds; saved all the same")
        if self.ranks.is_first:
            log.warning("%s: saved %s; exit %d, to be resumed", name, path, EXIT_RESUMABLE)
        self.ranks.settle()
        raise SystemExit(EXIT_RESUMABLE)

    def save_if_due(self, is_epoch_end: bool = False) -> None:
        """Save where the settings say so; training goes on where that fails."""
        config, state = self.config, self.state
        steps, epochs = config.save_every_n_steps, config.save_every_n_epochs
        is_due = self._is_save_due or (not is_epoch_end and steps is not None and state.global_step % steps == 0)
        if is_epoch_end and epochs is not None and state.epoch % epochs == 0:
            is_due = True
        if not is_due:
            return
        self._is_save_due = False
        self._saved_at = time.monotonic()
        self._is_safe = True
        try:
            self.save_checkpoint()
        except CheckpointTimeoutError:
            raise
        except CheckpointError as error:
            if self.ranks.is_first:
                log.warning("%s; training goes on", error)
        self._is_safe = False

    def save_checkpoint(self, emergency: bool = False) -> Path:
        """Save a checkpoint and return its folder; all ranks together.

        Raises:
            CheckpointError: it could not be written; older ones are unchanged.
            TrainerError: training is not at a place that can be saved: between two batches, and in hooks other than
                on_batch_start, on_phase and on_step_end.
        """
        if self._checkpointer is None or not self._is_safe:
            raise TrainerError(
                "save_checkpoint() was called within a step or before fit(); call it from on_batch_end, "
                "on_epoch_start, on_epoch_end or on_validation_end"
            )
        state = self.state
        state.rng, state.timestamp = capture_rng(), time.time()
        try:
            with self._holding_folders(), preserved_rng(), self.hang_guard.paused():
                path = self._save(self._checkpointer, emergency)
        finally:
            state.rng = None
            self.callbacks.call("on_checkpoint_end", self, state.global_step)
        self._last_saved = (state.global_step, state.phase)
        log.info("saved %s", path)
        return path

    def _save(self, checkpointer: Checkpointer, is_emergency: bool) -> Path:
        self.reporter.flush(self.state.train)
        self.reporter.sync()
        self.callbacks.call("on_checkpoint", self, self.state.global_step)
        metrics = self.metrics if self._validated_step == self.state.global_step else {}
        return checkpointer.save(self.snapshot(), self.state, metrics, is_emergency)

    def load_checkpoint(self, checkpoint_path: Path | None = None) -> ResumeState:
        """Load a checkpoint, the newest good one by default, and return its resume state.

        Before ``fit`` it says where ``fit`` will resume; afterwards it puts weights and all in place.

        Raises:
            CheckpointError: there is none, it is damaged, or it is of another model.
        """
        path = None if checkpoint_path is None else Path(checkpoint_path)
        config = self.config
        if self._checkpointer is None:
            store = CheckpointStore.of(config)
            stored = store.newest_good() if path is None else store.good(path)
        else:
            stored = self._checkpointer.find(path)
        if stored is None:
            raise CheckpointError(f"{config.checkpoint_folder} has no checkpoint that can be loaded")
        if self._checkpointer is None:
            self._resume_from = stored.path
            return read_state(stored)
        self._restore(stored, self.read_snapshot(stored))
        return self.state

    def _finish(self) -> None:
        """Save the end, and tell callbacks."""
        self.reporter.flush(self.state.train)
        if self._last_saved != (self.state.global_step, TrainerPhase.TRAINING_COMPLETE):
            self._is_safe = True
            self.save_checkpoint()
        if self._checkpointer is not None:
            self._checkpointer.wait_until_durable()
        logs = {**self.metrics, "epoch": self.state.epoch, "global_step": self.state.global_step}
        self.callbacks.call("on_training_end", self, logs)
