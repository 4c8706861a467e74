"""A recommender's prediction as text and as versioned JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any, NamedTuple

from predictor.core.base.quantities import duration
from predictor.core.base.text_table import text_table
from predictor.core.base.words import counted
from predictor.core.costs.published import CARD
from predictor.core.reliability.job import SECONDS_PER_HOUR
from predictor.core.report.json_document import (
    WIDE_FACTOR,
    answer_entry,
    count_by_source,
    named,
    slow_network_notes,
    step_entry,
    system_entry,
)
from predictor.core.report.text import foundations, memory_text, short_path, sources_text, wrapped
from predictor.core.step.breakdown import Answer, answers
from predictor.core.step.memory import GIB, StageMemory, step_memory
from predictor.core.step.memory_verdict import MemoryVerdict
from predictor.recommender.hugectr.plan_file import plan_entries
from predictor.recommender.hugectr.to_run import LoadedRecommender
from predictor.recommender.step import RecommenderPrediction, recommender_parts
from predictor.recommender.workload.cache_tasks import hit_rate
from predictor.recommender.workload.traffic import all_traffic

FORMAT = "estimate-train-time/recommender-prediction/1"
TITLE_WIDTH = 13
# Tables and their buffers are sized by the plan, so what they take is told without an error.
VERDICTS = {None: None, True: MemoryVerdict.FITS, False: MemoryVerdict.DOES_NOT_FIT}
LABELS = {
    "lookup_us": "embedding lookup",
    "forward_us": "dense network, forward",
    "backward_us": "dense network, backward",
    "update_us": "embedding update",
    "exchange_us": "embedding exchange, exposed",
    "input_us": "input, exposed",
    "reduction_us": "dense gradients, exposed",
    "optimizer_us": "dense optimizer",
    "host_us": "waiting for the host",
}
HIDDEN = {
    "hidden_exchange_us": "embedding exchange",
    "hidden_input_us": "input",
    "hidden_reduction_us": "dense gradients",
}


class Reported(NamedTuple):
    """A prediction with what it was made from."""

    prediction: RecommenderPrediction
    loaded: LoadedRecommender


def memory_of(prediction: RecommenderPrediction) -> StageMemory:
    """Return the bytes on the fullest GPU."""
    (memory,) = step_memory(prediction.tasks)
    return memory


def _fits(reported: Reported) -> bool | None:
    return reported.loaded.system.hardware.gpu.holds(memory_of(reported.prediction).total)


def notes(reported: Reported, answered: list[Answer]) -> list[str]:
    """Return the caveats of a prediction, a sentence each."""
    prediction, system = reported.prediction, reported.loaded.system
    said = []
    limit, memory = system.hardware.gpu.memory_gib, memory_of(prediction)
    if limit is not None and _fits(reported) is False:
        said.append(f"Does not fit: a GPU would need {memory.total / GIB:.1f} GiB and has {limit.value:.1f} GiB.")
    step = prediction.step
    if step.high_us > WIDE_FACTOR * step.low_us:
        widest = max(answered, key=lambda answer: answer.width_us)
        said.append(
            f"The 90 % interval is wide, its ends a factor of {step.high_us / step.low_us:.2g} apart: "
            f"{named(widest)} contributes most to its width."
        )
    said += slow_network_notes(system, answered, step.us, prediction.run.num_nodes > 1)
    donor = system.operator_donor()
    if donor is not None:
        said.append(
            f"{system.gpu} was not measured: operators run at the share of its peaks that {donor.name}'s "
            f"{donor.gpu.name} reached of its own."
        )
    return said


def _plan_row(reported: Reported) -> str:
    run = reported.prediction.run
    counts = Counter(str(sharded.sharding) for sharded in run.plan.tables)
    tables = ", ".join(f"{count} {sharding}" for sharding, count in counts.items()) or "no tables"
    lookups = [rank.lookups for rank in all_traffic(run)]
    mean = sum(lookups) / len(lookups)
    busiest = f"; {max(lookups):,.0f} lookups on the busiest rank, {max(lookups) / mean:.2f} × the mean" if mean else ""
    return f"{tables}{busiest}"


def rows(reported: Reported) -> dict[str, str]:
    """Return step, model, run, plan, system, speed and memory by their titles."""
    prediction, system = reported.prediction, reported.loaded.system
    step, run = prediction.step, prediction.run
    model = run.model
    embedding = sum(sharded.table.parameters for sharded in run.plan.tables)
    slots = sum(layer.num_slots for layer in model.embeddings)
    widths = "/".join(dict.fromkeys(str(layer.width) for layer in model.embeddings)) or "0"
    price = reported.loaded.price_per_gpu_hour
    nodes, cost = f"{min(run.gpus_per_node, run.num_gpus)} per node", ""
    if price is not None:
        hours = 1e6 / prediction.samples_per_second / SECONDS_PER_HOUR
        cost = f", {price * run.num_gpus * hours:.4g} per million samples"
    return {
        "Step time": (
            f"{duration(step.us)}   90 % interval {duration(step.low_us)} – {duration(step.high_us)}   "
            f"{sources_text(prediction, system)}"
        ),
        "Model": (
            f"{embedding:,} embedding weights in {counted(len(run.plan.tables), 'table')}, {slots} slots of width "
            f"{widths}; {model.dense_parameters:,} dense weights"
        ),
        "Training": (
            f"{run.batch_size:,} samples = {run.batch_per_gpu:,} × {counted(run.num_gpus, 'GPU')}, {nodes}; "
            f"{run.precision}; {run.engine}{', CUDA graphs' if run.cuda_graphs else ''}"
        ),
        "Plan": _plan_row(reported),
        "System": f"{system.name}, {system.gpu}; card: {short_path(system.folder / CARD)}",
        "Speed": f"{prediction.samples_per_second:,.0f} samples/s{cost}",
        "Memory": memory_text(memory_of(prediction), system, " on the fullest", VERDICTS[_fits(reported)]),
    }


def render(reported: Reported, width: int = 100) -> str:
    """Return a prediction as a page of text; where it does not fit, that stands before the time."""
    prediction, system = reported.prediction, reported.loaded.system
    answered = answers(prediction, system)
    parts = recommender_parts(prediction, system)
    titled = rows(reported)
    if _fits(reported) is False:
        titled = {"Memory": titled.pop("Memory"), **titled}
    first, *others = (f"{name.ljust(TITLE_WIDTH)}{text}" for name, text in titled.items())
    header = wrapped([first, "", *others], width, TITLE_WIDTH)
    times = {label: getattr(parts, name) for name, label in LABELS.items()} | {"step": parts.step_us}
    cells = [(label, f"{us / 1e3:.3f}", f"{us / parts.step_us:.1%}") for label, us in times.items() if us > 0.05]
    table = ["", "Where the step goes", *text_table([("ms", "", ""), *cells])]
    hidden = [f"{label} {getattr(parts, name) / 1e3:.3f} ms" for name, label in HIDDEN.items() if getattr(parts, name)]
    below = [f"Hidden beside kernels: {', '.join(hidden)}."] if hidden else []
    below += ["", *foundations(prediction.step.us, answered)]
    below += [f"Assumed: {assumption}" for assumption in reported.loaded.assumptions]
    below += [f"Note: {note}" for note in notes(reported, answered)]
    return "\n".join([*header, *table, *wrapped(below, width, 6)])


def to_json(reported: Reported) -> dict[str, Any]:
    """Return a prediction as plain lists, dictionaries, strings and numbers."""
    prediction, loaded = reported.prediction, reported.loaded
    run, system, step = prediction.run, loaded.system, prediction.step
    answered = answers(prediction, system)
    parts, memory = recommender_parts(prediction, system), memory_of(prediction)
    limit = system.hardware.gpu.memory_gib
    return {
        "format": FORMAT,
        "step": step_entry(step),
        "throughput": {"samples_per_s": prediction.samples_per_second},
        "parts": asdict(parts),
        "memory": {
            **{f"{name}_gib": size / GIB for name, size in asdict(memory).items()},
            "total_gib": memory.total / GIB,
            "available_gib": None if limit is None else limit.value,
            "fits": _fits(reported),
        },
        "sources": count_by_source(answered),
        "answers": [answer_entry(answer, step.us) for answer in answered],
        "run": {
            "batch_size": run.batch_size,
            "batch_per_gpu": run.batch_per_gpu,
            "num_gpus": run.num_gpus,
            "gpus_per_node": run.gpus_per_node,
            "precision": run.precision,
            "tf32": run.tf32,
            "key_exponent": run.keys.exponent,
            "engine": str(run.engine),
            "cuda_graphs": run.cuda_graphs,
            "cached_share": run.cached_share,
            "hit_rate": hit_rate(run),
            "overlap_input": run.overlap_input,
            "overlap_embeddings": run.overlap_embeddings,
            "overlap_gradients": run.overlap_gradients,
            "embedding_parameters": sum(sharded.table.parameters for sharded in run.plan.tables),
            "dense_parameters": run.model.dense_parameters,
        },
        "ranks": [
            {
                "rank": rank.rank,
                "lookups": rank.lookups,
                "touched_rows": sum(group.touched for group in rank.groups),
                "rows": sum(group.rows for group in rank.groups),
                "parameters": rank.parameters,
            }
            for rank in all_traffic(run)
        ],
        "plan": plan_entries(run.plan),
        "system": system_entry(system),
        "assumptions": list(loaded.assumptions),
        "notes": notes(reported, answered),
    }
