"""Events of a run: the joint between the readers of logs and the monitor.

A reader emits only what its log states. Missing values are None, never estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Parts of a step's wall time, where a log states them. ``communication`` includes the waiting inside collectives.
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"
DATA = "data"
CHECKPOINT = "checkpoint"
EVALUATION = "evaluation"
COMPILATION = "compilation"
COLLECTION = "garbage_collection"
PARTS = (FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, DATA, CHECKPOINT, EVALUATION, COMPILATION, COLLECTION)

# Cumulative counters of a process.
ALLOCATOR_RETRIES = "allocator_retries"
RECOMPILATIONS = "recompilations"
CPU_SECONDS = "cpu_seconds"  # user and system time of the process
THROTTLED_SECONDS = "throttled_seconds"  # CPU bandwidth control of the cgroup, cpu.stat throttled_usec
INVOLUNTARY_SWITCHES = "involuntary_context_switches"
COLLECTED_SECONDS = "collected_seconds"  # in Python's garbage collector
RUN_QUEUE_SECONDS = "run_queue_seconds"  # for which the main thread was ready to run and waited for a CPU (schedstat)
COUNTERS = (
    ALLOCATOR_RETRIES, RECOMPILATIONS, CPU_SECONDS, THROTTLED_SECONDS, INVOLUNTARY_SWITCHES, COLLECTED_SECONDS,
    RUN_QUEUE_SECONDS,
)  # fmt: skip

# Kinds of messages that a log states in words.
OUT_OF_MEMORY = "out_of_memory"
ALLOCATOR_RETRY = "allocator_retry"
RECOMPILED = "recompiled"
NETWORK = "network"  # retransmissions, flapping links, NCCL warnings
NOT_FINITE = "not_finite"
SKIPPED = "skipped"  # an update that the loss scaler left out
HARDWARE = "hardware"  # Xid, ECC
ERROR = "error"


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, or the mean of several where a tool logs every n steps.

    Attributes:
        number: of the last covered step, as the tool counts.
        seconds: wall time of one step; None where the log has none, then the monitor takes the difference of ``at``.
        steps: covered by this event, since the event before.
        at: time of the event, seconds since the epoch.
        rank: whose time it is; None: of the run.
        tokens, samples: of one step, all ranks together.
        sequence_length: in tokens.
        memory_bytes: reserved on the GPU (on a CPU: resident).
        memory_limit_bytes: of the GPU, or of the process.
        parts: seconds of one step by part (``PARTS``); they need not add up to the step.
        counters: cumulative since the process began (``COUNTERS``).
        loss: of the step.
        flops_per_second: of one GPU, as the tool states it.
    """

    number: int
    seconds: float | None = None
    steps: int = 1
    at: float | None = None
    rank: int | None = None
    tokens: float | None = None
    samples: float | None = None
    sequence_length: int | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None
    flops_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """Work between or beside steps: a checkpoint, an evaluation, a compilation.

    Attributes:
        part: one of ``PARTS``.
        step: after which it ran.
        seconds: where the log states them.
        in_step: its time is inside the step's own time.
        at: end, seconds since the epoch.
        rank: None: of the run.
    """

    part: str
    step: int | None = None
    seconds: float | None = None
    in_step: bool = False
    at: float | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """A process began to train: the first time, or after a restart.

    Attributes:
        at: seconds since the epoch.
        resumed_step: last step of the checkpoint it resumes from.
        hosts: nodes, in the order of ranks.
        world_size: ranks.
        target_step: at which the run ends.
        tool: framework, where the log says it.
    """

    at: float | None = None
    resumed_step: int | None = None
    hosts: tuple[str, ...] = ()
    world_size: int | None = None
    target_step: int | None = None
    tool: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The run ended.

    Attributes:
        state: "completed", or what the log or Slurm calls it ("TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY" …).
        at: seconds since the epoch.
    """

    state: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message that bears on speed.

    Attributes:
        kind: one of the constants above.
        text: the line, cut at 200 characters.
        step: after which it came.
    """

    kind: str
    text: str
    step: int | None = None
    at: float | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """A reading of one GPU (nvidia-smi, DCGM), or of a node.

    Attributes:
        device: index or UUID, with the host where it is known.
        throttle_reasons: active ones, in nvidia-smi's words ("sw_power_cap", "hw_thermal_slowdown" …).
        ecc_errors: uncorrected, since the last reset.
    """

    device: str
    at: float | None = None
    host: str = ""
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    throttle_reasons: frozenset[str] = frozenset()
    ecc_errors: int | None = None


Event = Step | Activity | Start | End | Message | DeviceSample
