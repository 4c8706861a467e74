"""Names of measured values in logs of many tools, and the field of ``Step`` that each fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from predictor.watch.events import (
    ALLOCATOR_RETRIES,
    BACKWARD,
    CHECKPOINT,
    COMMUNICATION,
    DATA,
    EVALUATION,
    FORWARD,
    OPTIMIZER,
)

GIB = float(2**30)
# Meanings beside the fields of Step.
NUMBER = "number"
TARGET = "target"
PER_SECOND = "steps_per_second"
TRAIN_SECONDS = "train_seconds"  # of the run so far
SAMPLES_PER_SECOND = "samples_per_second"
CONSUMED_SAMPLES = "consumed_samples"
CONSUMED_TOKENS = "consumed_tokens"
TOKENS_PER_SECOND = "tokens_per_second"
MEMORY_SHARE = "memory_share"
SKIPPED = "skipped"
AT = "at"
RANK = "rank"
PART = "part:"
COUNTER = "counter:"


class Meaning(NamedTuple):
    """Meaning of a value: what it fills, and the factor to seconds, bytes, or FLOP/s."""

    name: str
    factor: float = 1.0


def _named(name: str, factor: float, *spellings: str) -> Iterator[tuple[str, Meaning]]:
    return ((spelling, Meaning(name, factor)) for spelling in spellings)


# Megatron-LM's, GPT-NeoX's, NeMo's and nanotron's log lines; tags of TensorBoard and W&B; columns of CSV; keys of JSON.
NAMES: Mapping[str, Meaning] = {
    spelling: meaning
    for group in (
        _named(NUMBER, 1, "global_step", "trainer/global_step", "number", "current_steps", "time/batch"),
        _named(TARGET, 1, "total_steps", "max_steps"),
        _named("seconds", 1e-3, "elapsed time per iteration (ms)", "elapsed_time_per_iteration_ms", "step_time_ms"),
        _named("seconds", 1, "elapsed time per iteration (s)", "train_step_timing in s", "iteration-time"),
        _named("seconds", 1, "iteration_time", "runtime/iteration_time", "time_metrics/end_to_end(s)", "step_time_s"),
        _named("seconds", 1, "train/step_time_s", "train/step_time", "train/iteration_time", "step_time", "seconds"),
        _named("seconds", 1, "iter_time", "perf/step_time", "time_per_step", "timers/iteration-time"),
        _named(PER_SECOND, 1, "throughput/device/BPS", "throughput/batches_per_sec", "train_steps_per_second"),
        _named(PER_SECOND, 1, "throughput/device/batches_per_second", "steps_per_sec"),
        _named(TRAIN_SECONDS, 1, "wall_clock/train"),
        _named(TRAIN_SECONDS, 3600, "time/train"),
        _named(
            "loss", 1, "loss", "lm loss", "lm_loss", "train/loss", "train_loss", "train_loss_step", "train/loss_step"
        ),
        _named("loss", 1, "reduced_train_loss", "loss/train/total", "train/CE loss", "train/CrossEntropyLoss"),
        _named("loss", 1, "loss_metrics/global_avg_loss", "train/lm_loss", "train/lm loss", "training/loss"),
        _named("samples", 1, "global batch size", "global_batch_size", "batch-size", "samples", "batch_size"),
        _named(CONSUMED_SAMPLES, 1, "consumed samples", "consumed_samples"),
        _named(SAMPLES_PER_SECOND, 1, "samples/sec", "samples per second", "runtime/samples_per_sec"),
        _named(SAMPLES_PER_SECOND, 1, "CurrSamplesPerSec", "throughput/samples_per_sec"),
        _named("tokens", 1, "tokens", "tokens_per_step"),
        _named(CONSUMED_TOKENS, 1, "consumed tokens", "consumed_tokens", "throughput/total tokens", "time/token"),
        _named(CONSUMED_TOKENS, 1, "throughput/total_tokens", "num_input_tokens_seen", "train/num_input_tokens_seen"),
        _named(TOKENS_PER_SECOND, 1, "tokens_per_sec", "throughput/tokens_per_sec", "train/tokens_per_second"),
        _named("sequence_length", 1, "actual seqlen", "sequence_length", "curriculum_seqlen"),
        _named(
            "flops_per_second", 1e12, "throughput per GPU (TFLOP/s/GPU)", "TFLOPs", "model_tflops_per_gpu", "tflops"
        ),
        _named("flops_per_second", 1e12, "throughput/tflops/device", "TFLOPS_per_GPU", "approx flops per GPU"),
        _named("flops_per_second", 1, "runtime/flops_per_sec_per_gpu", "throughput/device/flops_per_sec"),
        _named("memory_bytes", GIB, "memory/max_reserved(GiB)", "memory(GiB)", "peak_memory_reserved"),
        _named("memory_bytes", 1e9, "memory/peak_reserved_mem", "mem-max-reserved-gigabytes"),
        _named("memory_bytes", 1, "memory_bytes", "mem-reserved-bytes", "max_memory_reserved"),
        _named("memory_bytes", 2.0**20, "max reserved", "System/Peak GPU Memory (MB)"),
        _named("memory_limit_bytes", 1, "memory_limit_bytes"),
        _named(MEMORY_SHARE, 1e-2, "memory/max_reserved(%)"),
        _named(SKIPPED, 1, "number of skipped iterations", "skipped"),
        _named(AT, 1, "at", "_timestamp", "timestamp", "wall_time"),
        _named(PART + DATA, 1, "time_metrics/data_loading(s)", "throughput/device/data loading (s)"),
        _named(PART + DATA, 1e-3, "batch-generator", "batch_input"),
        _named(PART + DATA, 1, "batch-generator-time"),
        _named(PART + FORWARD, 1e-3, "forward-compute", "fwd", "forward"),
        _named(PART + FORWARD, 1, "forward-compute-time"),
        _named(PART + BACKWARD, 1e-3, "backward-compute", "bwd", "backward"),
        _named(PART + BACKWARD, 1, "backward-compute-time"),
        _named(PART + OPTIMIZER, 1e-3, "optimizer", "step"),
        _named(PART + OPTIMIZER, 1, "optimizer-time"),
        _named(PART + COMMUNICATION, 1e-3, "all-grads-sync", "bwd_allreduce", "backward-allreduce"),
        _named(PART + COMMUNICATION, 1, "all-grads-sync-time"),
        _named(PART + CHECKPOINT, 1e-3, "save-checkpoint"),
        _named(PART + EVALUATION, 1e-3, "evaluate", "eval-time"),
        _named(COUNTER + ALLOCATOR_RETRIES, 1, "memory/num_alloc_retries", "memory/alloc_retries"),
    )
    for spelling, meaning in group
}
LARGEST_STEP = 1e15
LARGEST = 1e300
EVALUATION_PREFIXES = ("eval", "val", "test", "valid", "metrics/eval")
SUFFIXES = {b"K": 1e3, b"M": 1e6, b"G": 1e9, b"B": 1e9, b"T": 1e12, b"P": 1e15, b"GFLOPS": 1e-3, b"PFLOPS": 1e3}


def number(text: bytes) -> float | None:
    """Return a number as logs write it: ``1,234``, ``1.2K``, ``123.4TFLOPS``; None of none, or where it is not finite.

    >>> number(b"1,234"), number(b"1.5K"), number(b"90.7ms"), number(b"n/a")
    (1234.0, 1500.0, 90.7, None)
    """
    rest = b""
    try:
        value = float(text)
    except ValueError:
        end = 0
        while end < len(text) and text[end : end + 1] in b"0123456789.,+-eE ":
            end += 1
        try:
            value = float(text[:end].replace(b",", b"").rstrip(b" eE"))
        except ValueError:
            return None
        rest = text[end:].strip()
    return value * SUFFIXES.get(rest, 1.0) if abs(value) < LARGEST else None
