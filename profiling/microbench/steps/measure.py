"""Record steps: check, warm up, time and store each, then profile each once; what is stored is skipped.

Profiles come last: CUPTI stays attached to a process that has been profiled, and steps then take 10 to 20 % longer
(pytorch/pytorch issues 144455 and 146604).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from microbench.device import Device, device_state, library_versions, new_session
from microbench.errors import MeasureError
from microbench.provenance import now
from microbench.rows import Status
from microbench.steps import check as checking
from microbench.steps.configuration import StepConfig
from microbench.steps.kernels import record_launches, summarise
from microbench.steps.record import (
    Agreement,
    Measured,
    Memory,
    StepRecord,
    StepSample,
    read_record,
    record_path,
    write_record,
)
from microbench.steps.training import BACKWARD, FORWARD, OPTIMIZER, SEED, TrainingStep
from microbench.timing import KERNEL_ERRORS, STEP_SAMPLES, STEP_WARM_UP, failure_of, time_step

Say = Callable[[str], None]
# Before a step was run, what it may need: rates and seconds that the slowest devices of their kind keep to.
ASSUMED_FLOP_PER_S = {"cuda": 5e13, "cpu": 2e9}
ASSUMED_SETUP_S = {"cuda": 20.0, "cpu": 5.0}
ALL_STEPS = STEP_WARM_UP + STEP_SAMPLES + 1  # and the profiled one


@dataclass(slots=True)
class Pace:
    """Expected duration of the next step, from the last that ran; steps are recorded in increasing order of work."""

    flop_per_s: float
    setup_s: float

    def needed_s(self, config: StepConfig) -> float:
        """Return the seconds from a step's setup to its file."""
        return self.setup_s + ALL_STEPS * config.flops / self.flop_per_s

    def learn(self, config: StepConfig, measured: Measured, spent_s: float) -> None:
        """Take rate and setup time from a step that ran."""
        step_s = measured.median_us("wall_us") / 1e6
        self.flop_per_s = config.flops / step_s
        self.setup_s = max(1.0, spent_s - ALL_STEPS * step_s)


@dataclass(slots=True)
class Outcome:
    """Names of steps by how they ended; ``is_lost``: the device fails every later call of this process."""

    ok: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    no_memory: list[str] = field(default_factory=list)
    not_begun: list[str] = field(default_factory=list)
    is_lost: bool = False


def is_recorded(path: Path, config: StepConfig, device: Device) -> bool:
    """Return whether a good record of the same step on the same device is there.

    Raises:
        MeasureError: a record of another device is; one folder is of one device.
        TableError: what is there is damaged.
    """
    if not path.is_file():
        return False
    record = read_record(path)
    if record.device != device.name:
        raise MeasureError(f"{path} is of {record.device}; this is {device.name}. Choose another --out")
    return record.status is Status.OK and record.config_hash == config.hash


def _sample(step: TrainingStep, device_kind: str) -> StepSample:
    """Time one step."""
    timed = time_step(step.run, device_kind)
    parts = {f"{part}_us": round(timed.parts_us[part], 3) for part in (FORWARD, BACKWARD, OPTIMIZER)}
    return StepSample(device_us=round(timed.device_us, 3), wall_us=round(timed.wall_us, 3), **parts)


def _time(step: TrainingStep, device: Device, deadline: float) -> Measured | None:
    """Warm a step up and time it; None where the timed steps would end behind the deadline.

    Raises:
        ValueError: the loss is not a number.
    """
    cuda: Any = torch.cuda if device.kind == "cuda" else None
    warm_up = [_sample(step, device.kind) for _ in range(STEP_WARM_UP)]
    if time.monotonic() + (STEP_SAMPLES + 1) * warm_up[-1].wall_us / 1e6 > deadline:
        return None
    if cuda is not None:
        cuda.reset_peak_memory_stats()
    samples = [_sample(step, device.kind) for _ in range(STEP_SAMPLES)]
    memory = None
    if cuda is not None:
        memory = Memory(allocated=cuda.max_memory_allocated(), reserved=cuda.max_memory_reserved())
    loss = float(step.loss)
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss}")
    return Measured(
        parameters=sum(weight.numel() for weight in step.main_weights),
        warm_up=tuple(warm_up),
        samples=tuple(samples),
        loss=loss,
        memory=memory,
        kernels=None,
    )


def is_lost(device_kind: str) -> bool:
    """Return whether the device is lost: after some CUDA errors every later call of the process fails."""
    gc.collect()  # an error's frames hold tensors of the step that failed
    if device_kind != "cuda":
        return False
    try:
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return True
    return False


def _settings(device: Device) -> dict[str, str]:
    """Return the settings that the numbers depend on."""
    return {
        "attention": "torch scaled_dot_product_attention, flash backend",
        "attention of the check in fp32": str(checking.backend(device.kind, "fp32")).rpartition(".")[2],
        "optimizer": "torch.optim.AdamW fused, on fp32 weights",
        "threads": str(torch.get_num_threads()),
        "seed": str(SEED),
    }


def record_step(config: StepConfig, device: Device, deadline: float = math.inf) -> StepRecord | None:
    """Check and time one step; what fails is in the record. None where it would end behind the deadline.

    Args:
        config: the step.
        device: to run it on.
        deadline: of ``time.monotonic``.
    """
    session = new_session(device.kind)
    status, reason = Status.OK, ""
    agreements: tuple[Agreement, ...] = ()
    measured: Measured | None = None
    try:
        agreements = checking.check(config.run, device.kind)
        # A step that computes something else is timed all the same, and its record says so: nothing compares it.
        reason = "; ".join(failure for agreement in agreements for failure in agreement.failures)
        status = Status.ERROR if reason else Status.OK
        measured = _time(TrainingStep(config.run, device.kind), device, deadline)
        if measured is None:
            return None
    except (MemoryError, *KERNEL_ERRORS) as error:
        status, reason = failure_of(error.with_traceback(None), lambda: is_lost(device.kind))
    spread = None if measured is None else round(measured.relative_spread, 5)
    after = {"finished": now(), "state_after": device_state(device.kind), "relative_spread": spread}
    return StepRecord(
        name=config.name,
        status=status,
        reason=reason,
        configuration=config.content,
        config_hash=config.hash,
        device=device.name,
        device_kind=device.kind,
        driver=device.driver,
        versions=library_versions(device.kind),
        settings=_settings(device),
        session=session.model_copy(update=after),
        check=agreements,
        measured=measured,
    )


def _profile(config: StepConfig, path: Path, say: Say) -> None:
    """Add the kernels of one profiled step to a stored record."""
    record = read_record(path)
    if record.measured is None or record.measured.kernels is not None:
        return
    try:
        step = TrainingStep(config.run, record.device_kind)
        step.run(lambda part: None)  # kernels are loaded in the first step
        kernels = summarise(record_launches(step.run))
    except (MemoryError, *KERNEL_ERRORS) as error:
        _, reason = failure_of(error.with_traceback(None), lambda: False)
        say(f"{record.name}: not profiled: {reason}")
        return
    if kernels is not None:
        measured = record.measured.model_copy(update={"kernels": kernels})
        write_record(path.parent.parent, record.model_copy(update={"measured": measured}))


def _line(record: StepRecord) -> str:
    """Return a record as a line of progress."""
    if record.measured is None:
        return f"{record.name}: {record.status}: {record.reason}"
    measured = record.measured
    step_ms, wall_ms = measured.median_us("device_us") / 1e3, measured.median_us("wall_us") / 1e3
    return f"{record.name}: {step_ms:.2f} ms by events, {wall_ms:.2f} by wall, spread {measured.relative_spread:.1%}"


def measure_steps(configs: list[StepConfig], device: Device, results: Path, deadline: float, say: Say) -> Outcome:
    """Record every step that has no record yet until the deadline; each is stored as soon as it has ended.

    Args:
        configs: in the order to run them.
        device: to run them on.
        results: folder of this system.
        deadline: of ``time.monotonic``.
        say: takes a line of progress.

    Raises:
        MeasureError: the folder holds records of another device, or a damaged one.
    """
    outcome, pace = Outcome(), Pace(ASSUMED_FLOP_PER_S[device.kind], ASSUMED_SETUP_S[device.kind])
    for config in configs:
        if is_recorded(record_path(results, config.name), config, device):
            outcome.there.append(config.name)
            continue
        began = time.monotonic()
        record = None if began + pace.needed_s(config) > deadline else record_step(config, device, deadline)
        if record is None:
            outcome.not_begun.append(config.name)
            is_lost(device.kind)  # lets go of its memory
            continue
        write_record(results, record)
        say(_line(record))
        groups = {Status.OK: outcome.ok, Status.OUT_OF_MEMORY: outcome.no_memory}
        groups.get(record.status, outcome.failed).append(config.name)
        if is_lost(device.kind):
            outcome.is_lost = True
            return outcome
        if record.measured is not None:
            pace.learn(config, record.measured, time.monotonic() - began)
    for config in configs if device.kind == "cuda" else ():
        if config.name in (*outcome.ok, *outcome.there) and time.monotonic() + pace.needed_s(config) < deadline:
            _profile(config, record_path(results, config.name), say)
            outcome.is_lost = is_lost(device.kind)
            if outcome.is_lost:
                break
    return outcome
