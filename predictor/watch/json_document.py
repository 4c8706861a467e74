"""The health of a run as versioned JSON, documented in docs/json.md; every key names its unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC
from math import isfinite
from typing import Any

from predictor.watch.health import Expected, Finding, Health
from predictor.watch.words import clock, deviation

FORMAT = "estimate-train-time/watch/1"


def moment(at: float | None) -> str | None:
    """Return a moment as ISO 8601 in UTC.

    >>> moment(1_796_000_000.0)
    '2026-11-30T00:53:20Z'
    """
    return None if at is None else clock(at, "%Y-%m-%dT%H:%M:%SZ", UTC)


def _expected(expected: Expected) -> dict[str, Any]:
    """Return the expected step; its keys have their units."""
    names = {
        "seconds": "step_s", "parts": "parts_s", "flops": "model_flop", "peak_flops_per_second": "peak_flop_per_s"
    }  # fmt: skip
    return {names.get(name, name): value for name, value in asdict(expected).items()}


def _finding(finding: Finding) -> dict[str, Any]:
    change = asdict(finding.change)
    change["kind"] = str(finding.change.kind)
    change["period_steps"] = change.pop("period")
    return {
        "is_expected": finding.is_expected,
        "tolerated": finding.tolerated,
        "change": change,
        "explanations": [{**asdict(cause), "evidence": list(cause.evidence)} for cause in finding.explanations],
    }


def to_json(health: Health, sources: Sequence[str], at: float) -> dict[str, Any]:
    """Return the document; ``at`` is now, in seconds since the epoch."""
    content = {
        "format": FORMAT,
        "at": moment(at),
        "state": health.state.name.lower(),
        "expected": None if health.expected is None else _expected(health.expected),
        "first_step": health.first_step,
        "last_step": health.last_step,
        "steps": health.steps,
        "last_event_at": moment(health.last_at),
        "step": {
            "median_s": health.median_s,
            "low_s": health.low_s,
            "high_s": health.high_s,
            "spread": health.spread,
            "trend_per_1000_steps": health.trend,
            "parts_s": dict(health.parts),
        },
        "relative_to_expected": deviation(health),
        "tokens_per_s": health.tokens_per_second,
        "mfu": health.mfu,
        "lost_s": health.lost_s,
        "lost_to_come_s": health.lost_to_come_s,
        "remaining_steps": health.remaining_steps,
        "end_at": moment(health.end_at),
        "restarts": health.restarts,
        "findings": [_finding(finding) for finding in health.findings],
        "notes": list(health.notes),
        "sources": list(sources),
    }
    return finite(content)


def finite(content: dict[str, Any]) -> dict[str, Any]:
    """Return a document with null for numbers that JSON does not have, which only a log can lead to."""
    return {key: _finite(value) for key, value in content.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return finite(value)
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
