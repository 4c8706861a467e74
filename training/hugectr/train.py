"""Training as a configuration's solver clause describes it, like ``huge_ctr --train``."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from hugectr.exceptions import HugeCtrError
from hugectr.metric_names import MetricSpec, parse_metrics
from hugectr.schedule import LearningRateScheduler, get_learning_rate_scheduler, read_configuration
from hugectr.session import Session
from hugectr.solver import SolverParser, solver_parser_helper
from predictor.recommender.hugectr.sections import Solver

Report = Callable[[str], None]


class Outcome(NamedTuple):
    """How training ended.

    Attributes:
        iterations: steps done.
        metrics: of the last evaluation, if there was one.
        has_reached_threshold: training stopped since a metric reached its threshold.
    """

    iterations: int
    metrics: list[tuple[str, float]]
    has_reached_threshold: bool


def solver_of(clause: Solver, *, sharding_plan: str = "", seed: int = 0) -> SolverParser:
    """Return a solver clause as the settings of a session.

    Raises:
        HugeCtrError: a value is not allowed.
    """
    if clause.eval_batches is not None:
        raise HugeCtrError("solver: eval_batches is deprecated; use max_eval_batches or max_eval_samples")
    batchsize_eval = clause.batchsize_eval or clause.batchsize
    max_eval_batches = clause.max_eval_batches or 100
    if clause.max_eval_samples is not None:
        max_eval_batches = ceil(clause.max_eval_samples / batchsize_eval)
    return solver_parser_helper(
        seed=seed,
        max_eval_batches=max_eval_batches,
        batchsize_eval=batchsize_eval,
        batchsize=clause.batchsize,
        model_file=clause.dense_model_file,
        dense_opt_states_file=clause.dense_opt_states_file,
        embedding_files=clause.sparse_model_file,
        sparse_opt_states_file=clause.sparse_opt_states_file,
        vvgpu=clause.gpu,
        use_mixed_precision=clause.mixed_precision is not None,
        enable_tf32_compute=clause.enable_tf32_compute,
        scaler=float(clause.mixed_precision or 1),
        i64_input_key=clause.input_key_type == "I64",
        repeat_dataset=clause.num_epochs is None,
        sharding_plan=sharding_plan,
        eval_metrics=clause.eval_metrics,
    )


class Training:
    """One run of a solver clause."""

    def __init__(self, session: Session, clause: Solver, scheduler: LearningRateScheduler, report: Report) -> None:
        """Take the parts; ``report`` gets a line at a time."""
        self._session, self._clause, self._scheduler, self._report = session, clause, scheduler, report
        self._specs: tuple[MetricSpec, ...] = parse_metrics(clause.eval_metrics)
        self._iterations = 0
        self._metrics: list[tuple[str, float]] = []
        self._is_done = False

    def run(self) -> Outcome:
        """Train to the end, or to a threshold."""
        if self._clause.num_epochs is None:
            self._session.start_data_reading()
            while not self._is_done and self._iterations < (self._clause.max_iter or 0):
                self._step()
        else:
            reader = self._session.get_data_reader_train()
            for _ in range(self._clause.num_epochs):
                reader.set_source()
                while not self._is_done and self._step():
                    pass
        return Outcome(self._iterations, self._metrics, self._is_done)

    def _step(self) -> bool:
        clause = self._clause
        self._session.set_learning_rate(self._scheduler.get_next())
        if not self._session.train():
            return False
        self._iterations += 1
        if self._iterations % clause.display == 0:
            self._report(f"iteration {self._iterations}: loss {self._session.get_current_loss():.6f}")
        if self._iterations % clause.eval_interval == 0:
            self._evaluate()
        if self._iterations % clause.snapshot == 0:
            self._session.download_params_to_files(clause.snapshot_prefix, self._iterations)
        return True

    def _evaluate(self) -> None:
        session = self._session
        session.check_overflow()
        session.copy_weights_for_evaluation()
        if self._clause.num_epochs is not None:
            session.get_data_reader_eval().set_source()
        self._metrics = session.evaluation()
        text = ", ".join(f"{name} {value:.6f}" for name, value in self._metrics)
        self._report(f"iteration {self._iterations}: {text}")
        values = dict(self._metrics)
        self._is_done = any(spec.is_reached(values[spec.name]) for spec in self._specs)
        if self._is_done:
            self._report(f"iteration {self._iterations}: the threshold is reached")


def train(config_file: str, report: Report, *, sharding_plan: str = "", seed: int = 0) -> Outcome:
    """Train as a configuration's solver clause says.

    Args:
        config_file: a configuration with a solver clause.
        report: gets losses and metrics, a line at a time.
        sharding_plan: file of a sharding plan; '' is HugeCTR's placement.
        seed: of initial weights and dropout.

    Raises:
        HugeCtrError: the configuration has no solver clause or does not say when to stop, or cannot be used.
    """
    clause = read_configuration(config_file).solver
    if clause is None:
        raise HugeCtrError(f"{config_file} has no solver clause; add it, or train with hugectr.Session")
    if clause.max_iter is None and clause.num_epochs is None:
        raise HugeCtrError(f"{config_file}: solver has neither max_iter nor num_epochs; give one")
    settings = solver_of(clause, sharding_plan=sharding_plan, seed=seed)
    with Session(settings, config_file) as session:
        return Training(session, clause, get_learning_rate_scheduler(config_file), report).run()
