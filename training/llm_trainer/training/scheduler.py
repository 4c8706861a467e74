"""Learning rates over a run: linear warm-up, then cosine, linear, polynomial or no decay."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from llm_trainer.exceptions import TrainingError

# From the progress of the decay (0 at its beginning, 1 at its end) to what is left between the least rate and the peak.
DECAYS: dict[str, Callable[[float, float], float]] = {
    "cosine": lambda progress, _power: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "linear": lambda progress, _power: 1.0 - progress,
    "polynomial": lambda progress, power: (1.0 - progress) ** power,
    "constant": lambda _progress, _power: 1.0,
}


def create_scheduler(
    optimizer: Optimizer,
    scheduler_type: str = "cosine",
    num_training_steps: int = 1000,
    warmup_steps: int = 0,
    min_lr_ratio: float = 0.0,
    *,
    power: float = 2.0,
) -> LambdaLR:
    """Return a scheduler to be advanced after every optimizer step.

    With N training steps, w warm-up steps and r = ``min_lr_ratio``, step s (from 0) has the peak rate times

        (s + 1) / (w + 1)                    s < w
        r + (1 − r) · d(t),                  t = min(1, (s − w) / (N − w)), from s = w on

    where d(t) is ½(1 + cos πt) for cosine, 1 − t for linear, (1 − t)^power for polynomial and 1 for constant. Step w
    has the peak rate, and the end of the run has r times the peak.

    Args:
        optimizer: whose rates are the peak.
        scheduler_type: cosine, linear, polynomial or constant.
        num_training_steps: N, optimizer steps of the whole run; where it is not above w, the run is warm-up alone.
        warmup_steps: w.
        min_lr_ratio: r; without effect on constant.
        power: of polynomial.

    Raises:
        TrainingError: the type is unknown or a number out of its range.

    Source: cosine, Loshchilov and Hutter 2017, arXiv:1608.03983.
    """
    if scheduler_type not in DECAYS:
        raise TrainingError(f"scheduler_type is {scheduler_type!r}; expected {', '.join(DECAYS)}")
    if num_training_steps < 1:
        raise TrainingError(f"num_training_steps is {num_training_steps}; it must be at least 1")
    if warmup_steps < 0:
        raise TrainingError(f"warmup_steps is {warmup_steps}; it must be at least 0")
    if not 0.0 <= min_lr_ratio <= 1.0:
        raise TrainingError(f"min_lr_ratio is {min_lr_ratio}; it must be from 0 to 1")
    decay, decay_steps = DECAYS[scheduler_type], max(1, num_training_steps - warmup_steps)

    def multiplier(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        remaining = decay(min(1.0, (step - warmup_steps) / decay_steps), power)
        return min_lr_ratio + (1.0 - min_lr_ratio) * remaining

    return LambdaLR(optimizer, multiplier)


def resolve_warmup_steps(warmup_steps: int, warmup_ratio: float, num_training_steps: int) -> int:
    """Return the warm-up steps of a run: those given, or the share of the run where they are 0.

    >>> resolve_warmup_steps(0, 0.1, 500), resolve_warmup_steps(100, 0.1, 500)
    (50, 100)
    """
    return warmup_steps or round(warmup_ratio * num_training_steps)
