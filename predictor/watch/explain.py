"""Explanations of a deviation: naive Bayes over the causes of ``causes.yaml``.

A cause without evidence in the log is not named; its belief counts as "not explained".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict, Field

from predictor.watch.evidence import Sign, signs_of
from predictor.watch.health import ChangeKind, Explanation, Finding
from predictor.watch.records import Record

NOT_EXPLAINED = "not_explained"
WORKLOAD_CHANGED = "workload_changed"
_SUPPORTS = 2.0  # likelihood ratio from which an answer counts as evidence for a cause
_NAMED = 0.02  # belief from which a cause is named
_MOST_NAMED = 4


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cause(_Strict):
    """A cause, in words."""

    title: str
    expected: bool = Field(False, description="a healthy run shows it: no alarm")
    distinguish: str
    remedy: str


class Answer(_Strict):
    """Probability of an answer by cause."""

    given: Mapping[str, float]
    otherwise: float = Field(gt=0, lt=1)

    def under(self, cause: str) -> float:
        """Return the probability of this answer under a cause."""
        return self.given.get(cause, self.otherwise)


class Question(_Strict):
    """A question to the log; an answer "no" is the complement of "yes"."""

    why: str
    answers: Mapping[str, Answer]

    def probability(self, value: str, cause: str) -> float:
        """Return the probability of an answer under a cause."""
        if value == "no":
            return 1 - self.answers["yes"].under(cause)
        return self.answers[value].under(cause)


class Causes(_Strict):
    """Causes, questions and priors."""

    priors: Mapping[str, float]
    causes: Mapping[str, Cause]
    questions: Mapping[str, Question]

    def prior(self, cause: str) -> float:
        """Return the prior of a cause."""
        rest = (1 - sum(self.priors.values())) / (len(self.causes) - len(self.priors))
        return self.priors.get(cause, rest)


@cache
def causes() -> Causes:
    """Return the causes that are known."""
    text = files("predictor.watch").joinpath("causes.yaml").read_text(encoding="utf-8")
    return Causes.model_validate(yaml.safe_load(text))


@dataclass(frozen=True, slots=True)
class _Belief:
    cause: str
    belief: float
    evidence: tuple[str, ...]


def explain(signs: Iterable[Sign]) -> tuple[Explanation, ...]:
    """Return the causes that the answers speak for, the most probable first; at least one: "not explained"."""
    known, signs = causes(), tuple(signs)
    weights = {cause: known.prior(cause) for cause in known.causes}
    for sign in signs:
        question = known.questions[sign.question]
        for cause in weights:
            weights[cause] *= question.probability(sign.value, cause)
    total = sum(weights.values())
    named = []
    for cause, weight in weights.items():
        evidence = _evidence(cause, signs)
        if cause != NOT_EXPLAINED and evidence and weight / total >= _NAMED:
            named.append(_Belief(cause, weight / total, evidence))
    named = sorted(named, key=lambda item: -item.belief)[:_MOST_NAMED]
    rest = 1 - sum(item.belief for item in named)
    neutral = tuple(sign.sentence for sign in signs)[:3]
    ordered = sorted([*named, _Belief(NOT_EXPLAINED, rest, neutral)], key=lambda item: -item.belief)
    return tuple(
        Explanation(
            item.cause, known.causes[item.cause].title, item.belief, item.evidence,
            known.causes[item.cause].distinguish, known.causes[item.cause].remedy,
        )
        for item in ordered
    )  # fmt: skip


def _evidence(cause: str, signs: Iterable[Sign]) -> tuple[str, ...]:
    """Return the answers that speak for a cause."""
    questions = causes().questions
    return tuple(
        sign.sentence
        for sign in signs
        if questions[sign.question].probability(sign.value, cause)
        > _SUPPORTS * questions[sign.question].probability(sign.value, NOT_EXPLAINED)
    )


def finding_of(record: Record) -> Finding:
    """Return the finding of a deviation."""
    explanations = explain(signs_of(record))
    first = causes().causes[explanations[0].cause]
    planned = first.expected and not record.is_longer
    if record.kind is ChangeKind.JUMP and explanations[0].cause != WORKLOAD_CHANGED:
        planned = False  # a level that lasts is neither warm-up nor the pause of a restart
    # A drift from the first steps on is usual as far as times tell; facts that speak for a fault tell more.
    is_alarm = record.is_alarm or (record.from_start and explanations[0].cause != NOT_EXPLAINED)
    tolerated = "" if planned or is_alarm else record.tolerated
    return Finding(record.change, explanations, planned or not is_alarm, tolerated)
