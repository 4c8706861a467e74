"""A prediction as versioned JSON, documented in docs/json.md; every key names its unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from predictor.core.base.errors import PublishedError
from predictor.core.base.words import counted
from predictor.core.costs.collectives import COLLECTIVES, Topology
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.fp32 import Fp32System
from predictor.core.costs.published import CARD, PublishedSystem
from predictor.core.hardware.hardware import System
from predictor.core.hardware.host_memory import host_memory_gib
from predictor.core.hardware.host_processor import host_of
from predictor.core.plan.loading import Loaded
from predictor.core.report.budget import prediction_bill
from predictor.core.report.goodput import goodput_notes
from predictor.core.report.not_modelled import not_modelled_entry
from predictor.core.report.slowest import slowest_rank
from predictor.core.step.breakdown import BY_BYTES, Answer, answers, stage_parts
from predictor.core.step.composition import StepTime
from predictor.core.step.highest_mfu import mfu_entry
from predictor.core.step.host_memory import node_host_bytes
from predictor.core.step.memory import GIB, StageMemory, step_memory
from predictor.core.step.memory_verdict import (
    MEMORY_ERROR,
    MOST_RETRIES,
    MemoryVerdict,
    fits_in_memory,
    memory_verdict_on,
)
from predictor.core.step.prediction import Prediction
from predictor.core.workload.layout import Layout
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.step_tasks import StepTasks

FORMAT = "estimate-train-time/prediction/1"
INTERVAL = 0.9
# An interval with ends farther apart than this factor is noted.
WIDE_FACTOR = 2.0
# Waits for the host are noted above WORTH_A_NOTE of the step, a network with less than SLOW of its nominal bandwidth
# where traffic is.
SLOW, WORTH_A_NOTE = 0.5, 0.02
BUFFERS = 1.5  # beside offloaded states; source: deepspeed/runtime/zero/stage3.py, additional_buffer_factor
LARGE_MESSAGE = 1e9
# Source: Megatron-LM, megatron/core/transformer/experimental_attention_variant/dsa.py, unfused_dsa_fn.
SPARSE_NOTE = (
    "Sparse attention is predicted with kernels that read the chosen keys alone, which nobody measured: where PyTorch "
    "masks the scores of all pairs, as in Megatron-LM without fused kernels, a step takes far longer."
)


def straddling_notes(layout: Layout) -> list[str]:
    """Return a note for each group that exchanges activations and whose traffic crosses the network."""
    kind = "nodes" if layout.gpus_per_domain is None else "NVLink domains"
    groups = {
        "Tensor-parallel": (layout.tensor_parallel_size, layout.tensor_group()),
        "Expert-parallel": (layout.expert_parallel_size, layout.expert_group()),
    }
    said = []
    for name, (size, group) in groups.items():
        if size > 1 and group.nodes > 1:
            fits = size <= layout.reach
            remedy = "; they would fit in another rank_order or size" if fits else ""
            said.append(
                f"{name} groups of {size} ranks straddle {group.nodes} {kind} with "
                f"{counted(layout.reach, 'GPU')} each, so their traffic crosses the network{remedy}."
            )
    return said


def host_notes(prediction: StepTime, hardware: System) -> list[str]:
    """Return what a prediction says of its host: nothing where the device hardly waits for it."""
    host, waiting = host_of(hardware), prediction.host
    if host is None or waiting.high_us <= WORTH_A_NOTE * prediction.step.us:
        return []
    share = f"{waiting.us / prediction.step.us:.0%} of the step"
    if waiting.high_us > 1.05 * waiting.us:
        share += f", {waiting.low_us / 1e3:,.1f} to {waiting.high_us / 1e3:,.1f} ms"
    said = f"The GPU waits for the host's launches for {share}: modelled from launches on {host.name}, not measured."
    if not host.is_own:
        said += (
            " The nodes' processor is not known: `python -m microbench host` measures it in a minute, without a GPU, "
            "and prints a host section for the configuration."
        )
    return [said]


def host_memory_notes(step: StepTasks, run: TrainingRun, hardware: System) -> list[str]:
    """Return what offloading takes of a node's host memory; nothing where nothing is offloaded."""
    needed = node_host_bytes(step, run) / GIB
    if not needed:
        return []
    limit = host_memory_gib(hardware)
    takes = f"offloading takes {needed:,.0f} GiB of a node's host memory, {BUFFERS * needed:,.0f} with buffers"
    if limit is None:
        return [f"{takes[0].upper()}{takes[1:]}; what it has is not known: set cluster.host_memory_gib."]
    of = f"{takes}, and it has {limit.value:,.0f} GiB ({limit.source})"
    if needed > limit.value:
        return [f"Does not fit into host memory: {of}."]
    return [f"May not fit into host memory: {of}."] if BUFFERS * needed > limit.value else []


def named(answer: Answer) -> str:
    """Return the operator with its direction, or the collective."""
    if answer.operator in COLLECTIVES:
        return answer.operator
    by_bytes = ", timed by its bytes," if answer.operator.endswith(BY_BYTES) else ""
    return f"{answer.operator.removesuffix(BY_BYTES)} {answer.direction}{by_bytes}"


def notes(prediction: Prediction, loaded: Loaded, answered: list[Answer]) -> list[str]:
    """Return the caveats of a prediction, a sentence each, those of its configuration first."""
    run, system, step = loaded.run, loaded.system, prediction.step
    memory = [*_memory_notes(prediction, system), *host_memory_notes(prediction.tasks, run, system.hardware)]
    said = [*loaded.notes, *memory]
    if step.high_us > WIDE_FACTOR * step.low_us:
        widest = max(answered, key=lambda answer: answer.width_us)
        waits = prediction.host.high_us - prediction.host.low_us
        most = "waiting for the host" if waits > widest.width_us else named(widest)
        said.append(
            f"The 90 % interval is wide, its ends a factor of {step.high_us / step.low_us:.2g} apart: "
            f"{most} contributes most to its width."
        )
    said += _hardware_notes(prediction, system, answered)
    if run.precision != system.precision:
        said.append(_precision_note(run.precision, system))
    said += host_notes(prediction, system.hardware)
    latent = run.model.latent_attention
    if latent is not None and latent.indexer is not None and latent.indexer.top_k < run.model.sequence_length:
        said.append(SPARSE_NOTE)
    by_bytes = [answer.step_us for answer in answered if answer.operator.endswith(BY_BYTES)]
    if by_bytes:
        share = sum(by_bytes) / prediction.step.us
        said.append(f"Kernels without measurements are timed by the bytes they move: {share:.1%} of the step at most.")
    return said + goodput_notes(prediction_bill(prediction, loaded).goodput, loaded.budget)


def system_entry(system: PublishedSystem) -> dict[str, str]:
    """Return what a document says of the system that answered."""
    return {
        "name": system.name,
        "gpu": system.gpu,
        "measured_precision": system.precision,
        "folder": str(system.folder),
        "card": str(system.folder / CARD),
    }


def _precision_note(precision: str, system: PublishedSystem) -> str:
    """Return what answers for a precision that was not measured."""
    said = f"{precision} was not measured on {system.name}: answered from {system.precision}, "
    if isinstance(system, Fp32System):
        return f"{said}by the bytes of an element and the peaks of the data sheet, which the interval is wider for."
    return f"{said}which has the same element size and the same peak; the interval does not cover the difference."


def reached_gb_per_s(system: PublishedSystem) -> float | None:
    """Return the bandwidth per GPU of large all-reduces between two nodes; None if unknown."""
    try:
        us = system.collective("all_reduce", LARGE_MESSAGE, Topology(2, 1)).us
    except PublishedError:
        return None
    return LARGE_MESSAGE / 1e3 / us  # two ranks: each sends the message once


def slow_network_notes(
    system: PublishedSystem, answered: Sequence[Answer], step_us: float, leaves_node: bool
) -> list[str]:
    """Return a note where traffic between nodes counts and the network was slow when it was measured."""
    nominal, reached = system.hardware.links.inter_node_gb_per_s.value, reached_gb_per_s(system)
    traffic = sum(answer.step_us for answer in answered if answer.operator in COLLECTIVES)
    if not leaves_node or reached is None or reached >= SLOW * nominal or traffic <= WORTH_A_NOTE * step_us:
        return []
    said = (
        f"Between nodes {system.name} reached {reached:.1f} of its {nominal:g} GB/s when it was measured, and so "
        "it does here: a run with a faster transport spends less on traffic."
    )
    return [said]


def _hardware_notes(prediction: Prediction, system: PublishedSystem, answered: list[Answer]) -> list[str]:
    """Return notes on a slow network and on a donor of the operators."""
    layout = prediction.run.layout
    said = slow_network_notes(system, answered, prediction.step.us, layout.num_gpus > layout.reach)
    said += straddling_notes(layout)
    donor = system.operator_donor()
    if donor is not None:
        said.append(
            f"{system.gpu} was not measured: operators run at the share of its peaks that {donor.name}'s "
            f"{donor.gpu.name} reached of its own, which a lower power limit would not allow."
        )
    return said


def fullest_stage(prediction: Prediction) -> tuple[int, StageMemory]:
    """Return the stage whose GPUs need the most memory, from 0, and what they need."""
    return max(enumerate(step_memory(prediction.tasks)), key=lambda numbered: numbered[1].total)


def fullest_verdict(prediction: Prediction, system: PublishedSystem) -> MemoryVerdict | None:
    """Return whether every stage fits; None where the GPU's memory is not known."""
    return memory_verdict_on(fullest_stage(prediction)[1].total, system)


def _memory_notes(prediction: Prediction, system: PublishedSystem) -> list[str]:
    """Return a note where the run does not fit into the memory of a GPU, or may not."""
    limit = system.hardware.gpu.memory_gib
    _, fullest = fullest_stage(prediction)
    verdict = memory_verdict_on(fullest.total, system)
    if limit is None or verdict is MemoryVerdict.FITS:
        return []
    size = fullest.total / GIB
    needed = f"a GPU would need {size:.1f} GiB and has {limit.value:.1f} GiB"
    if verdict is MemoryVerdict.DOES_NOT_FIT:
        return [f"Does not fit: {needed}, {size - limit.value:.1f} GiB too little."]
    slower = f"A full GPU is slower, by up to {MOST_RETRIES:.0%} in one published run: PyTorch retries allocations."
    return [f"May not fit: {needed}; measured peaks are met within {MEMORY_ERROR:.0%}. {slower}"]


def _run(prediction: Prediction) -> dict[str, Any]:
    run, model, layout = prediction.run, prediction.run.model, prediction.run.layout
    return {
        "model_parameters": model.num_parameters(),
        "active_parameters": model.num_parameters(active=True),
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.key_value_heads,
        "sequence_length": model.sequence_length,
        "vocab_size": model.vocab_size,
        "num_gpus": layout.num_gpus,
        "gpus_per_node": layout.gpus_per_node,
        "gpus_per_domain": layout.gpus_per_domain,
        "pipeline_parallel_size": layout.pipeline_parallel_size,
        "virtual_pipeline_parallel_size": run.virtual_pipeline_parallel_size,
        "tensor_parallel_size": layout.tensor_parallel_size,
        "data_parallel_size": layout.data_parallel_size,
        "context_parallel_size": layout.context_parallel_size,
        "expert_parallel_size": layout.expert_parallel_size,
        "sequence_parallel": run.sequence_parallel,
        "layers_per_stage": list(run.layers_per_stage),
        "micro_batch_size": run.micro_batch_size,
        "num_micro_batches": run.num_micro_batches,
        "global_batch_size": run.global_batch_size,
        "tokens_per_step": run.tokens_per_step,
        "precision": run.precision,
        "recompute": str(run.recompute),
        "schedule": run.schedule,
        "zero_stage": run.zero_stage,
        **_uneven(run),
    }


def _uneven(run: TrainingRun) -> dict[str, Any]:
    """Return what is said of a layout only where its chunks are given, or where experts are split on their own."""
    said: dict[str, Any] = {}
    if run.layers_per_chunk is not None:
        said["layers_per_chunk"] = [list(chunks) for chunks in run.layers_per_chunk]
    if run.layout.is_folded:
        said["expert_tensor_parallel_size"] = run.layout.expert_split
    return said


def step_entry(step: Cost) -> dict[str, Any]:
    """Return the time of a step with its interval."""
    return {
        "time_us": step.us,
        "low_us": step.low_us,
        "high_us": step.high_us,
        "interval": INTERVAL,
        "source": step.source.label,
    }


def _taken(loaded: Loaded) -> dict[str, Any] | None:
    """Return the defaults of its framework that a configuration took; None where it says all."""
    taken = loaded.taken
    return None if taken is None else {"framework": str(taken.framework), "named": taken.is_named, "keys": taken.keys}


def _speed(prediction: Prediction) -> dict[str, Any]:
    step = prediction.step
    return {
        "step": step_entry(step),
        "throughput": {
            "tokens_per_s": prediction.tokens_per_second,
            "model_tflop_per_s_per_gpu": prediction.model_flops_per_second / 1e12,
            "peak_tflop_per_s_per_gpu": prediction.peak_tflop_per_s,
            "mfu": prediction.mfu,
        },
    }


def answer_entry(answer: Answer, step_us: float) -> dict[str, Any]:
    """Return an operator's or a collective's contribution to a step."""
    outside = None if answer.outside is None else {"dimension": answer.outside, "factor": answer.factor}
    return {
        "operator": answer.operator.removesuffix(BY_BYTES),
        "direction": answer.direction,
        "timed_by": "bytes" if answer.operator.endswith(BY_BYTES) else "regressor",
        "source": answer.source.label,
        "outside": outside,
        "time_us": answer.step_us,
        "share_of_step": answer.step_us / step_us,
    }


def count_by_source(answered: Sequence[Answer]) -> dict[str, int]:
    """Return the number of answers by source; predictions have none with the source measured."""
    shown = [source for source in Source if source is not Source.MEASURED]
    return {source.label: sum(answer.source is source for answer in answered) for source in shown}


def _memory(memory: StageMemory, system: PublishedSystem) -> dict[str, Any]:
    """Return one GPU's memory in GiB."""
    limit, verdict = system.hardware.gpu.memory_gib, memory_verdict_on(memory.total, system)
    parts = {f"{name}_gib": size / GIB for name, size in asdict(memory).items()}
    return {
        **parts,
        "allocated_gib": memory.allocated / GIB,
        "reserved_gib": memory.reserved / GIB,
        "total_gib": memory.total / GIB,
        "available_gib": None if limit is None else limit.value,
        "fits": fits_in_memory(verdict),
        "fit": verdict,
    }


def to_json(prediction: Prediction, loaded: Loaded) -> dict[str, Any]:
    """Return a prediction as plain lists, dictionaries, strings and numbers."""
    step, system = prediction.step, loaded.system
    answered = answers(prediction, system)
    parts = stage_parts(prediction)
    offloads = any(part.host_link_us for part in parts)
    memory = step_memory(prediction.tasks)
    stages = [
        {
            "stage": i,
            "num_layers": stage.num_layers,
            "parameters_per_gpu": stage.parameters,
            **part.as_dict(offloads),
            "data_parallel_us": part.data_parallel_us,
            "step_us": part.step_us,
            "memory": _memory(needed, system),
        }
        for i, (stage, part, needed) in enumerate(zip(prediction.stages, parts, memory, strict=True))
    ]
    bubble_us = parts[prediction.critical_stage].bubble_us
    fullest, needed_there = fullest_stage(prediction)
    return {
        "format": FORMAT,
        "memory": {"stage": fullest, **_memory(needed_there, system)},
        **_speed(prediction),
        "not_modelled": not_modelled_entry(prediction),
        "published_mfu": mfu_entry(prediction),
        "taken": _taken(loaded),
        "critical_stage": prediction.critical_stage,
        "bubble_fraction": bubble_us / step.us,
        "stages": stages,
        "slowest_rank": asdict(slowest_rank(prediction, system)),
        "sources": count_by_source(answered),
        "answers": [answer_entry(answer, step.us) for answer in answered],
        "run": _run(prediction),
        "budget": asdict(prediction_bill(prediction, loaded)),
        "system": system_entry(system),
        "notes": notes(prediction, loaded, answered),
    }
