"""Numbers of a run's health: pace, lost time, the end; and the time-out from which a run counts as stalled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from predictor.watch.deviations import Deviations
from predictor.watch.events import PARTS
from predictor.watch.explain import WORKLOAD_CHANGED, explain
from predictor.watch.health import Change, ChangeKind, Expected, Finding
from predictor.watch.observations import SAMPLES, TOKENS
from predictor.watch.robust import quantile

_LEAST_PAUSE_S = 60.0  # before a run counts as stalled
_PAUSE_STEPS = 20.0  # usual steps
_PARTS = frozenset(PARTS)
_STAYING = (ChangeKind.JUMP, ChangeKind.DRIFT, ChangeKind.WHOLE)
COARSE = 0.01  # of a step
_BEYOND = 2.0  # times the longest pause so far: the chance that the next of n exceeds all is 1 ÷ (n + 1)


@dataclass(slots=True)
class Pauses:
    """Times between events."""

    last_at: float | None = None
    longest_s: float = 0.0
    last_s: float | None = None

    def take(self, at: float | None, is_start: bool) -> None:
        """Take the time of an event."""
        if at is None or not isfinite(at):
            return
        self.last_s = at - self.last_at if self.last_at is not None and at >= self.last_at else None
        if self.last_s is not None and not is_start:
            self.longest_s = max(self.longest_s, self.last_s)
        self.last_at = at if self.last_at is None else max(at, self.last_at)

    def stalled_for(self, now: float | None, usual_s: float | None, last: int | None) -> Finding | None:
        """Return the finding of a run without an event, after step ``last``, for longer than its own pauses suggest."""
        if now is None or self.last_at is None or usual_s is None or last is None:
            return None
        silent = now - self.last_at
        if silent <= max(_LEAST_PAUSE_S, _PAUSE_STEPS * usual_s, _BEYOND * self.longest_s):
            return None
        change = Change(ChangeKind.STALL, last, None, usual_s, silent, silent)
        pause = f"No event for {silent:,.0f} s; the longest pause before was {self.longest_s:,.1f} s"
        return Finding(change, tuple(replace(item, evidence=(pause,)) for item in explain(())))


@dataclass(frozen=True, slots=True)
class Outlook:
    """Pace and lost time of a run, from its deviations and findings."""

    last: int | None
    target: int | None
    last_at: float | None
    deviations: Deviations
    findings: tuple[Finding, ...]

    def numbers(self) -> dict[str, Any]:
        """Return the fields of ``Health`` that are numbers."""
        deviations, baseline = self.deviations, self.deviations.detector.baseline
        recent = deviations.recent()
        tokens, level = deviations.usual.run.get(TOKENS), deviations.usual_s
        expected = deviations.expected
        tokens = tokens or (expected.tokens if expected is not None else None)
        per_second = tokens / level if tokens and level else None
        remaining = max(self.target - self.last, 0) if self.target and self.last is not None else None
        to_come = self._lost_per_step() * remaining if remaining is not None else None
        return {
            "median_s": quantile(recent, 0.5) if recent else None,
            "low_s": quantile(recent, 0.05) if recent else None,
            "high_s": quantile(recent, 0.95) if recent else None,
            "spread": baseline.noise if baseline is not None else None,
            "trend": deviations.drift.per_thousand,
            "tokens_per_second": per_second,
            "mfu": self._mfu(expected, level, tokens),
            "parts": {name: value for name, value in deviations.usual.run.items() if name in _PARTS},
            "lost_s": sum(finding.change.lost_s for finding in self._losses()),
            "lost_to_come_s": to_come,
            "remaining_steps": remaining,
            "end_at": self._end_at(remaining, level),
        }

    def _end_at(self, remaining: int | None, level: float | None) -> float | None:
        if self.last_at is None or remaining is None or level is None:
            return None
        return self.last_at + remaining * (level + self._pauses_per_step())

    def _losses(self) -> list[Finding]:
        """Return the findings whose time is lost: all but work that the plan changed."""
        return [finding for finding in self.findings if finding.explanations[0].cause != WORKLOAD_CHANGED]

    def _mfu(self, expected: Expected | None, level: float | None, tokens: float | None) -> float | None:
        if expected is None or not expected.flops or not expected.peak_flops_per_second or not level:
            return None
        share = tokens / expected.tokens if tokens and expected.tokens else 1.0
        return expected.flops * share / (level * expected.peak_flops_per_second)

    def _lost_per_step(self) -> float:
        """Return the seconds that a step to come loses: to levels that stay, and to slow steps that recur."""
        going = [
            finding.change.extra_s for finding in self._losses()
            if finding.change.last_step is None and finding.change.kind in _STAYING
        ]  # fmt: skip
        return sum(going) + self._pauses_per_step()

    def _pauses_per_step(self) -> float:
        """Return the seconds per step of what recurs: checkpoints, evaluations, periodic and irregular slow steps."""
        recurring = [f.change for f in self.findings if f.change.kind in (ChangeKind.PERIODIC, ChangeKind.IRREGULAR)]
        if self.last is None:
            return 0.0
        return sum(
            change.lost_s / max(self.last - change.first_step + 1, 1) for change in recurring if change.lost_s > 0
        )

    def notes(self) -> tuple[str, ...]:
        """Return caveats."""
        baseline, usual = self.deviations.detector.baseline, self.deviations.usual
        if baseline is None:
            return ()
        notes = []
        if baseline.unit_s > COARSE * baseline.seconds:
            unit = f"{baseline.unit_s * 1e3:,.3g} ms, {baseline.unit_s / baseline.seconds:.0%} of a step"
            notes.append(f"The log rounds times to {unit}: smaller changes are seen late.")
        if not usual.ranks and not any(part in usual.run for part in PARTS):
            notes.append("The log states no parts of a step and no ranks: what slows a step cannot be told from it.")
        if TOKENS not in usual.run and SAMPLES not in usual.run:
            notes.append(
                "The log states no tokens of a step: a change of batch or sequence cannot be told from a fault."
            )
        return tuple(notes)
