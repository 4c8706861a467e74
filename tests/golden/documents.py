"""The program's JSON, reduced to what is stored: numbers by section, without prose and paths."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container
from typing import Any

# Sections of a configuration, each a mapping that holds numbers, words, lists of them and mappings.
Sections = dict[str, dict[str, Any]]

SIGNIFICANT_DIGITS = 12
RECOMMENDER = "estimate-train-time/recommender-prediction/"
BUDGET = ("steps", "gpu_hours", "energy_kwh", "price")
# Of the run what a default, a preset or another tool's file decides; the rest repeats the configuration.
RUN = (
    "model_parameters",
    "active_parameters",
    "num_gpus",
    "gpus_per_node",
    "layers_per_stage",
    "virtual_pipeline_parallel_size",
    "micro_batch_size",
    "num_micro_batches",
    "tokens_per_step",
    "precision",
    "recompute",
    "schedule",
    "zero_stage",
)
# Of a stage, its number, what other sections hold, and what adds up its parts.
SUMS = ("stage", "memory", "step_us", "data_parallel_us")


def rounded(value: Any) -> Any:
    """Return a value with its floating-point numbers cut to the digits that are stored."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def _columns(rows: list[dict[str, Any]], without: Container[str] = ()) -> dict[str, list[Any]]:
    """Return a list of mappings as a mapping of lists; those that hold nothing but the number zero are left out."""
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in without}
    return {key: column for key, column in columns.items() if any(value != 0.0 or value is False for value in column)}


def _operator(answer: dict[str, Any]) -> tuple[str, Any]:
    """Return name and numbers of an operator or collective; forward and interpolated where nothing else stands."""
    words = [answer["operator"]]
    words += ["backward"] if answer["direction"] == "backward" else []
    words += ["by bytes"] if answer["timed_by"] == "bytes" else []
    outside = [value for value in (answer["outside"] or {}).values() if value is not None]
    plain = answer["source"] == "interpolated" and not outside
    return " ".join(words), answer["time_us"] if plain else [answer["time_us"], answer["source"], *outside]


def recommender(document: dict[str, Any]) -> Sections:
    """Return a recommender's prediction: the step and its parts, the run, its ranks, and each operator."""
    step = document["step"] | document["throughput"] | {"sources": document["sources"]}
    step |= {key: document["system"][key] for key in ("name", "measured_precision")}
    step |= {"notes": len(document["notes"]), "assumptions": len(document["assumptions"])}
    return {
        "step": step,
        "parts": document["parts"],
        "run": document["run"],
        "memory": document["memory"],
        "ranks": _columns(document["ranks"], ("rank",)),
        "operators": dict(map(_operator, document["answers"])),
    }


def prediction(document: dict[str, Any]) -> Sections:
    """Return a prediction: the step, the run, what each stage spends and needs (a list over stages), each operator."""
    if document["format"].startswith(RECOMMENDER):
        return recommender(document)
    step = document["step"] | document["throughput"]
    step |= {key: document[key] for key in ("critical_stage", "bubble_fraction", "sources")}
    step |= {key: document["system"][key] for key in ("name", "measured_precision")}
    step |= {key: document["budget"][key] for key in BUDGET} | {"notes": len(document["notes"])}
    operators = dict(map(_operator, document["answers"]))
    assert len(operators) == len(document["answers"]), "two answers have one name"
    return {
        "step": step,
        "run": {key: document["run"][key] for key in RUN},
        "stages": _columns(document["stages"], SUMS),
        "memory": _columns([stage["memory"] for stage in document["stages"]]),
        "operators": operators,
    }


def comparison(document: dict[str, Any]) -> Sections:
    """Return every prediction of a comparison; sections carry its number, as names hold paths."""
    return {
        f"{index} {section}": content
        for index, compared in enumerate(document["compared"])
        for section, content in prediction(compared["prediction"]).items()
    }


def changed_hardware(document: dict[str, Any]) -> Sections:
    """Return the second prediction of a comparison; the first is that of the unchanged hardware."""
    return prediction(document["compared"][1]["prediction"])


def search(document: dict[str, Any]) -> Sections:
    """Return a search: how many layouts there were, and those that it ranks first.

    How many were replayed is left out: it depends on the bounds, and the ranking does not.
    """
    counts = ("system", "num_gpus", "global_batch_size", "memory_gib", "considered", "fitting")
    summary = {key: document[key] for key in counts}
    front = [{key: layout[key] for key in ("time_us", "memory_gib")} for layout in document["pareto"]]
    return {
        "search": summary | {"notes": len(document["notes"])},
        **{f"layout {index + 1}": layout for index, layout in enumerate(document["layouts"])},
        **({"pareto": _columns(front)} if front else {}),
    }


def trace(document: dict[str, Any]) -> Sections:
    """Return a trace: number of spans and sum of their durations, by stream and by kind, and when each stage ends."""
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    by_stream, by_kind = Counter[str](), Counter[str]()
    stream_us, kind_us = defaultdict[str, float](float), defaultdict[str, float](float)
    ends = defaultdict[str, float](float)
    for span in spans:
        kind = f"{span['cat']}: {re.sub(r' [0-9]+', ' n', span['name'])}"
        by_stream[span["cat"]] += 1
        by_kind[kind] += 1
        stream_us[span["cat"]] += span["dur"]
        kind_us[kind] += span["dur"]
        ends[str(span["pid"])] = max(ends[str(span["pid"])], span["ts"] + span["dur"])
    return {
        "trace": {"step_us": document["otherData"]["step_us"], "spans": len(spans)},
        "trace streams": {stream: [count, stream_us[stream]] for stream, count in by_stream.items()},
        "trace kinds": {kind: [count, kind_us[kind]] for kind, count in by_kind.items()},
        "trace ends": {"processes": list(ends), "last_us": list(ends.values())},
    }
