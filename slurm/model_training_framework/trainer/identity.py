"""Identity of a run: settings that decide its steps, stored in checkpoints and compared when it goes on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_training_framework.trainer.config import GenericTrainerConfig
from model_training_framework.trainer.data_mark import data_mark
from model_training_framework.trainer.errors import RunRefusedError
from model_training_framework.trainer.ranks import Ranks

SETTINGS = ("gradient_accumulation_steps", "max_grad_norm", "scheduler_interval", "precision")
NEVER_TAKEN = {"optimizer", "scheduler", "strategy"}  # whose state is of another form
# options of torch's optimizers that choose a kernel, and those that a schedule moves
NOT_COMPARED = {"params", "param_names", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable"}
# what a scheduler's state counts or follows; the rest of it is constant
COUNTED = {"last_epoch", "best", "num_bad_epochs", "cooldown_counter"}
CONSTANT_THOUGH_PRIVATE = {"_schedulers", "_milestones"}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """Optimizer and scheduler as ``fit`` was given them.

    Attributes:
        groups: options of the optimizer's groups, without the weights.
        schedule: the scheduler's state; None without one.
    """

    groups: list[dict[str, Any]]
    schedule: dict[str, Any] | None

    @classmethod
    def of(cls, optimizer: Any, scheduler: Any) -> Given:
        """Return copies."""
        groups = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        return cls(deepcopy(groups), deepcopy(scheduler.state_dict()) if scheduler is not None else None)

    def rates(self) -> list[float]:
        """Return each group's learning rate, before any schedule."""
        return [float(group.get("initial_lr", group["lr"])) for group in self.groups]


def identity_of(
    config: GenericTrainerConfig, given: Given, optimizer: Any, scheduler: Any, loader: Any, is_sharded: bool
) -> dict[str, Any]:
    """Return what decides a run's steps, beside the model, the seed and the number of ranks."""
    batches = getattr(loader, "batch_sampler", None)
    found = {
        **{name: getattr(config, name) for name in SETTINGS},
        "strategy": "fsdp" if is_sharded else "replicated",
        "batch_size": getattr(loader, "batch_size", None) or getattr(batches, "batch_size", None),
        "drop_last": getattr(loader, "drop_last", False),
        "sampler": type(getattr(loader, "sampler", None)).__name__,
        "data": data_mark(loader),
        "optimizer": type(optimizer).__name__,
        "learning_rate": _one(given.rates()),
        "scheduler": type(scheduler).__name__ if scheduler is not None else None,
        **_constants("scheduler", given.schedule or {}),
    }
    for name in given.groups[0].keys() - NOT_COMPARED:
        found[name] = _one([group.get(name) for group in given.groups])
    return {name: value for name, value in found.items() if _is_json_value(value)}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return what differs, as « name: checkpoint X, now Y », by name; what one of them lacks is not compared."""
    names = [name for name in now if name in before and before[name] != now[name]]
    return {name: f"{name}: checkpoint {before[name]}, now {now[name]}" for name in names}


def accepted_changes(
    path: Path, before: Mapping[str, Any] | None, now: Mapping[str, Any], may_change: Collection[str], ranks: Ranks
) -> set[str]:
    """Return by name what differs from a checkpoint's run and may; all ranks together.

    Args:
        path: of the checkpoint.
        before: its identity; None where it does not say.
        now: of this run.
        may_change: names.
        ranks: of this run.

    Raises:
        RunRefusedError: something else differs, on any rank.
    """
    if before is None and ranks.is_first:
        log.warning("%s is of an earlier version, without batch size, data, precision, optimizer: not compared", path)
    found = _differences(before or {}, now)
    refused = [name for name in found if name in NEVER_TAKEN or name not in may_change]
    problem = _refusal(path, found, refused) if refused else ""
    if problem := next(filter(None, ranks.gather(problem, "compare the run with its checkpoint")), ""):
        raise RunRefusedError(problem)
    if found and ranks.is_first:
        log.warning("%s: going on with %s", path, "; ".join(found.values()))
    return set(found)


def _refusal(path: Path, found: Mapping[str, str], refused: Collection[str]) -> str:
    named = [name for name in refused if name not in NEVER_TAKEN]
    ask = f", name what may change in resume_changes ({', '.join(named)})" if len(named) == len(refused) else ""
    return (
        f"{path} is of another run: {'; '.join(found[name] for name in refused)}. Set it back{ask}, or begin in "
        "another folder"
    )


def changed_states(
    shared: Mapping[str, Any], given: Given, changed: Collection[str], before: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return a checkpoint's optimizer and scheduler states, with what was changed as it was given.

    Args:
        shared: of the checkpoint.
        given: to ``fit``.
        changed: names.
        before: the checkpoint's identity.
    """
    optimizer, schedule = shared["optimizer"], shared["scheduler"]
    if changed:
        optimizer = _with_options(optimizer, given, changed, before)
    if schedule and any(name == "learning_rate" or name.startswith("scheduler.") for name in changed):
        schedule = _with_constants(schedule, given.schedule or {})
    return optimizer, schedule


def _with_options(
    state: Mapping[str, Any], given: Given, changed: Collection[str], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an optimizer's saved state with changed options; a learning rate keeps its place in the schedule."""
    rates = before.get("learning_rate")
    groups = []
    for number, (saved, mine, rate) in enumerate(zip(state["param_groups"], given.groups, given.rates(), strict=True)):
        group = dict(saved) | {name: mine[name] for name in changed if name in mine}
        if "learning_rate" in changed:
            old = saved.get("initial_lr", rates[number] if isinstance(rates, list) else rates)
            group["lr"] = saved["lr"] * (rate / old) if old and saved["lr"] != old else rate
            if "initial_lr" in saved:
                group["initial_lr"] = rate
        groups.append(group)
    return {**state, "param_groups": groups}


def _with_constants(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scheduler's saved state with the constants of the given one."""
    merged: dict[str, Any] = {}
    for name, value in saved.items():
        if name == "_schedulers":
            merged[name] = [_with_constants(one, mine) for one, mine in zip(value, given[name], strict=True)]
        else:
            merged[name] = value if _is_counted(name) else given.get(name, value)
    return merged


def _constants(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in state.items():
        if name == "_schedulers":
            for number, inner in enumerate(value):
                found |= _constants(f"{prefix}.{number}", inner)
        elif name != "base_lrs" and not _is_counted(name):  # learning_rate says
            found[f"{prefix}.{name.removeprefix('_')}"] = value
    return found


def _is_counted(name: str) -> bool:
    return name in COUNTED or (name.startswith("_") and name not in CONSTANT_THOUGH_PRIVATE)


def _one(values: list[Any]) -> Any:
    """Return the value that all groups have, or each group's."""
    return values[0] if all(value == values[0] for value in values) else values


def _is_json_value(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_json_value(item) for item in value)
    if isinstance(value, dict):
        return all(_is_json_value(item) for pair in value.items() for item in pair)
    return value is None or type(value) in (bool, int, float, str)
