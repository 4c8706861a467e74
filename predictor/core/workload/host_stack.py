"""Host work of software stacks, in launches: Python, modules, autograd and hooks beside the kernel launches.

``host_stacks.yaml`` has the counts and how each was made. The stack of a run is its framework's; Megatron-LM's modules
are Transformer Engine's where it trains in bf16, as today's defaults are (``frameworks.py``), else its own.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.read_yaml import read_mapping
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.software import Framework

DATA = Path(__file__).with_name("host_stacks.yaml")
PLAIN, COMPILED, TRANSFORMER_ENGINE, OWN_MODULES = "plain", "compiled", "megatron_te", "megatron_local"
SHARDED = 3  # the ZeRO stage whose parameters are gathered layer by layer


class Stack(BaseModel):
    """Host work of one software stack."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(description="whose code was counted, and what it took")
    layer: tuple[float, float] = Field(description="launches' worth of a pass through a layer, forward and backward")
    step_per_tensor: float = Field(
        default=0.0, ge=0, description="launches' worth of a step's end for each parameter tensor of a rank"
    )
    step_synchronizations: int = Field(
        default=0, ge=0, description="times that a step's end reads a number back from the device"
    )


class Stacks(BaseModel):
    """All stacks, what sharding adds, and whose framework is which."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stacks: dict[str, Stack]
    fsdp2: Stack = Field(description="added where FSDP2 gathers the parameters of every layer")
    frameworks: dict[str, str]
    slowdown: dict[str, float] = Field(description="launches over those of one undisturbed process, by framework")


@lru_cache(maxsize=1)
def host_stacks() -> Stacks:
    """Read the stacks, once per process."""
    return Stacks.model_validate(read_mapping(DATA))


def stack_name(run: TrainingRun) -> str:
    """Return the name of a run's stack; a program of one's own is plain PyTorch."""
    name = PLAIN if run.framework is None else host_stacks().frameworks.get(run.framework, PLAIN)
    is_todays = run.precision == "bf16" or run.gemm_recipe is not None
    return name if is_todays or name != TRANSFORMER_ENGINE else OWN_MODULES


def stack_of(run: TrainingRun) -> Stack:
    """Return the host work of a run's stack."""
    return host_stacks().stacks[stack_name(run)]


def layer_work(run: TrainingRun) -> tuple[float, float]:
    """Return the launches' worth of own work of a pass through a layer, forward and backward."""
    forward, backward = stack_of(run).layer
    if run.compiled:
        compiled = host_stacks().stacks[COMPILED].layer
        forward, backward = min(forward, compiled[0]), min(backward, compiled[1])
    if run.zero_stage >= SHARDED and run.framework is Framework.TORCHTITAN:
        added = host_stacks().fsdp2.layer
        return forward + added[0], backward + added[1]
    return forward, backward


def slowdown(run: TrainingRun) -> float:
    """Return how much longer launches take than those of one undisturbed process: as measured, else by framework."""
    if run.host_slowdown is not None:
        return run.host_slowdown
    return 1.0 if run.framework is None else host_stacks().slowdown.get(run.framework, 1.0)


def step_work(run: TrainingRun, tensors: float) -> tuple[float, float]:
    """Return the launches' worth of a step's end on a rank of so many parameter tensors, and of those the exposed.

    Exposed are the launches behind which the device has nothing to do: one for each number read back from it.
    """
    stack = stack_of(run)
    return stack.step_per_tensor * tensors * slowdown(run), stack.step_synchronizations * slowdown(run)
