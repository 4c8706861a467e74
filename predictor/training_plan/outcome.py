"""The answer to a plan's question: all plans, the front, the chosen one and what moves it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from predictor.core.report.goodput import goodput, goodput_notes
from predictor.training_plan.choice import chosen, front
from predictor.training_plan.outlook import contributions
from predictor.training_plan.plans import Considered, TrainingPlan
from predictor.training_plan.question import PlanQuestion

USUALLY_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a plan's question.

    Attributes:
        considered: all plans, and cases without one.
        front: plans that no other beats in both price and date, the earliest first.
        chosen: the cheapest that keeps deadline and budget with the asked probability; else the most likely one.
        risks: share of the variance of its date by cause, the largest first.
        top: plans to show.
    """

    question: PlanQuestion
    considered: Considered
    front: tuple[TrainingPlan, ...]
    chosen: TrainingPlan
    risks: dict[str, float]
    top: int

    @property
    def is_kept(self) -> bool:
        """Return whether the chosen plan keeps deadline and budget with the asked probability."""
        return self.chosen.probability >= self.question.file.probability

    @property
    def shown(self) -> tuple[list[TrainingPlan], int]:
        """Return the plans to show in their order, the chosen one and the front in any case, and how many are left."""
        plans = self.considered.plans
        first = [plan for plan in plans if plan is self.chosen or self.is_on_front(plan)]
        others = [plan for plan in plans if plan is not self.chosen and not self.is_on_front(plan)]
        others.sort(key=lambda plan: (-plan.probability, plan.hours))
        shown = [*first, *others[: max(self.top - len(first), 0)]]
        shown.sort(key=lambda plan: (plan.case.offer.name, plan.case.num_gpus, plan.case.precision or "", plan.hours))
        return shown, len(plans) - len(shown)

    def is_on_front(self, plan: TrainingPlan) -> bool:
        """Return whether no other plan is both cheaper and earlier."""
        return any(plan is each for each in self.front)

    @property
    def interrupted(self) -> str | None:
        """Return that searches were left; None where none was."""
        return None if self.considered.is_whole else "Interrupted: only the searches that had ended count."

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the caveats, a sentence each."""
        said = []
        if self.chosen.price_per_hour is None and len(self.question.offers) > 1:
            said.append(
                "No prices are known, so that the plan of the fewest GPU-hours is chosen; GPU-hours of different "
                "systems are not comparable: --price NAME=X."
            )
        answer, job = self.chosen.answer, self.chosen.outlook.simulation.job
        rests_on = goodput_notes(goodput(job, answer.system.hardware, answer.budget, draws=0), answer.budget)
        taken = self.chosen.purchase.interruptions_per_node_day
        if taken is not None:
            said.append(
                f"Spot instances are taken away {taken:g} times a node and day, beside its failures; each stops the "
                "run, and another takes its place at once: no wait for capacity is counted."
            )
        return (*said, *self._unwritten(), *self.question.notes, *answer.notes, *rests_on)

    def _unwritten(self) -> tuple[str, ...]:
        """Return what files of the chosen run leave out, in a sentence; nothing where they have all."""
        file, run = self.question.file, self.chosen.winner.prediction.run
        missing = ["no evaluation"] if file.evaluation is not None else []
        if file.ramp_up is not None:
            # Interleaving takes micro-batches in groups of the stages, at every size of the batch.
            groups = run.layout.pipeline_parallel_size if run.virtual_pipeline_parallel_size > 1 else 1
            increment = run.micro_batch_size * run.layout.data_parallel_size * groups
            samples = file.ramp_up.tokens / run.model.sequence_length
            missing.append(
                "no ramp-up of the batch, whose steps a job counts: add it, to Megatron-LM as --rampup-batch-size "
                f"{file.ramp_up.from_batch_size} {increment} {samples:.0f}"
            )
        written = "A run that is written (--write, --write-arguments, --write-job) has "
        return (f"{written}{', and '.join(missing)}.",) if missing else ()


def outcome_of(question: PlanQuestion, considered: Considered, top: int) -> Outcome:
    """Return the answer among plans, of which there is one at least."""
    file = question.file
    best = chosen(considered.plans, file.probability, file.draws, file.seed)
    plans = tuple(best if _same(plan, best) else plan for plan in considered.plans)
    risks = contributions(best.outlook, file.seed)
    return Outcome(question, replace(considered, plans=plans), tuple(front(plans)), best, risks, top)


def _same(plan: TrainingPlan, other: TrainingPlan) -> bool:
    return (plan.case, plan.purchase) == (other.case, other.purchase)
