"""``plan``: which machine, which layout, by when, for how much, and how sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import whole
from predictor.core.plan.framework_rules import NAMES
from predictor.core.predict.inputs import file_values
from predictor.core.predict.prediction import USUAL_WIDTH
from predictor.core.schema.foreign import writers
from predictor.core.schema.merging import merged
from predictor.core.schema.sections import validate
from predictor.layout_search.answer import configuration
from predictor.training_plan.outcome import USUALLY_SHOWN, Outcome, outcome_of
from predictor.training_plan.plans import Progress, TrainingPlan, considered, silent
from predictor.training_plan.question import plan_question
from predictor.training_plan.report import text
from predictor.training_plan.report.json_document import to_json
from predictor.training_plan.section import laid_over, read_plan

MOST_SHOWN = 10_000


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PlanResult:
    """The plans of a training, and the one that is chosen.

    Attributes:
        outcome: question, plans, front, choice and risks.
    """

    outcome: Outcome

    @property
    def chosen(self) -> TrainingPlan:
        """Return the cheapest plan that keeps deadline and budget with the asked probability; else the likeliest."""
        return self.outcome.chosen

    @property
    def plans(self) -> tuple[TrainingPlan, ...]:
        """Return all plans."""
        return self.outcome.considered.plans

    @property
    def front(self) -> tuple[TrainingPlan, ...]:
        """Return the plans that no other beats in both price and date, the earliest first."""
        return self.outcome.front

    @property
    def is_kept(self) -> bool:
        """Return whether the chosen plan keeps deadline and budget with the asked probability."""
        return self.outcome.is_kept

    @property
    def is_whole(self) -> bool:
        """Return whether every search ended; not where the user interrupted them."""
        return self.outcome.considered.is_whole

    @property
    def risks(self) -> dict[str, float]:
        """Return the share of the variance of the date by cause, the largest first."""
        return self.outcome.risks

    @property
    def configuration(self) -> dict[str, Any]:
        """Return the chosen plan's run as a configuration that ``predict`` takes, with its tokens and its price."""
        plan = self.chosen
        budget = {"train_tokens": plan.work.tokens}
        if plan.purchase.price_per_gpu_hour is not None:
            budget["price_per_gpu_hour"] = plan.purchase.price_per_gpu_hour
        return merged(configuration(plan.answer, plan.winner), {"budget": budget})

    def arguments(self, version: str | None = None) -> str:
        """Return the chosen layout as its framework's own arguments: a script, a TOML or a JSON file.

        Args:
            version: of the framework; the newest that is known without one.

        Raises:
            ValueError: the plan named no framework, or that has no arguments for a part of the configuration.
        """
        return writers().written(self.configuration, self._framework(), Path.cwd(), version)

    def job(self, arguments: str) -> str:
        """Return the chosen plan as an experiment of model_training_framework, which submits and resumes it.

        Args:
            arguments: path of the file that has the layout's ``arguments``.

        Raises:
            ValueError: the plan named no framework.
        """
        content, plan = self.configuration, self.chosen
        gpus = plan.case.num_gpus, plan.answer.space.base.layout.gpus_per_node
        return writers().launch_job(content, validate(content), self._framework(), arguments, gpus, plan.work.steps)

    def _framework(self) -> str:
        rules = self.chosen.answer.space.rules
        if rules is None:
            raise ConfigError(f"--write-arguments needs --framework: {', '.join(NAMES)}")
        return rules.name

    def to_dict(self) -> dict[str, Any]:
        """Return what ``plan --json`` prints."""
        return to_json(self.outcome)

    def to_yaml(self) -> str:
        """Return the chosen plan's run as a configuration file."""
        return yaml.safe_dump(self.configuration, sort_keys=False)

    def text(self, width: int = USUAL_WIDTH) -> str:
        """Return the page that ``plan`` prints, its sentences wrapped at ``width`` columns."""
        return text.render(self.outcome, width)

    def __str__(self) -> str:
        """Return the page."""
        return self.text()

    def __repr__(self) -> str:
        """Return the answer in a line."""
        return f"<{text.sentence(self.outcome)}>"


def plan(
    file: str | PathLike[str] | Mapping[str, Any] | None = None,
    *,
    top: int = USUALLY_SHOWN,
    progress: Progress = silent,
    **keys: Any,
) -> PlanResult:
    """Plan a training.

    Args:
        file: of a plan (docs/plan.md), or a mapping with its keys.
        top: plans to show in the text, beside those on the front.
        progress: is told how many searches are done, and of how many.
        keys: keys of the file, which count before it.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        ValueError: a key or a value is not allowed, or no plan is possible.
    """
    given = file_values({key: value for key, value in keys.items() if value is not None})
    if file is None or isinstance(file, Mapping):
        return plan_of(laid_over(file_values(file or {}), given), Path.cwd(), "", top, progress)
    content, base = read_plan(Path(file))
    return plan_of(laid_over(content, given), base, f"{file}: ", top, progress)


def plan_of(content: dict[str, Any], base: Path, where: str, top: int, progress: Progress) -> PlanResult:
    """Return the plan of a file's content; errors as of ``plan``.

    Args:
        content: keys and values.
        base: folder that paths are relative to.
        where: begins a message, such as the file's name.
        top: plans to show.
        progress: is told how many searches are done, and of how many.
    """
    question = plan_question(content, base, where)
    found = considered(question, progress)
    if not found.plans:
        raise ConfigError(f"{where}{' '.join(text.left_out_lines(found.left_out))}")
    return PlanResult(outcome_of(question, found, whole("--top", top, largest=MOST_SHOWN)))
