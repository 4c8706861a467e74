"""Helpers of a training loop of one's own: seeds, device, log, checkpoints and memory."""

from __future__ import annotations

import logging
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from llm_trainer.exceptions import TrainingError
from model_training_framework.trainer.checkpoint_files import check_storable, read_part, write_part
from model_training_framework.trainer.errors import CheckpointError, TrainerError
from model_training_framework.trainer.snapshot import load_weights

LEVELS = ("debug", "info", "warning", "error", "critical")
GIB = 1 << 30


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators on every device."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)


def get_device() -> torch.device:
    """Return the accelerator of this machine (CUDA, MPS, XPU …), or the CPU where there is none."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if accelerator is not None else torch.device("cpu")


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """What ``setup_logging`` put up, so that a second call replaces it."""


def setup_logging(level: str = "info", log_file: str | Path | None = None) -> None:
    """Log to standard error, and to a file where one is given; a second call replaces the first.

    Raises:
        TrainingError: the level is unknown, or the file cannot be written.
    """
    if level.lower() not in LEVELS:
        raise TrainingError(f"level is {level!r}; expected {', '.join(LEVELS)}")
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    handlers = [_Handler(sys.stderr)]
    if log_file is not None:
        try:
            Path(log_file).parent.mkdir(parents=True, exist_ok=True)
            handlers.append(_Handler(Path(log_file).open("a", encoding="utf-8")))  # noqa: SIM115 - open until exit
        except OSError as error:
            raise TrainingError(f"log_file {log_file} cannot be written: {error.strerror}") from error
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
    root.setLevel(level.upper())


def save_checkpoint(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: Any,
    epoch: int,
    step: int,
    loss: float,
    save_path: str | Path,
    config: dict[str, Any] | None = None,
) -> None:
    """Write model, optimizer, scheduler and place of a loop of one's own to one file; ``Trainer`` has its own.

    Raises:
        TrainingError: the file cannot be written, or something in it could run code when read.
    """
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict() if scheduler is not None else None,
        "epoch": epoch,
        "step": step,
        "loss": float(loss),
        "config": config or {},
    }
    path = Path(save_path)
    building = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        check_storable(content, "checkpoint")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_part(building, content)
        building.replace(path)
    except (OSError, TrainerError) as error:
        building.unlink(missing_ok=True)
        raise TrainingError(f"{path} cannot be written: {error}") from error


def load_checkpoint(
    checkpoint_path: str | Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    scheduler: Any = None,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Put back what ``save_checkpoint`` wrote, and return its epoch, step, loss and config; no code of it can run.

    Args:
        checkpoint_path: the file.
        model: of the same architecture; moved to ``device`` where one is given.
        optimizer: put back where it is given.
        scheduler: put back where it is given.
        device: of the model.

    Raises:
        TrainingError: the file cannot be read, or is another model's or optimizer's.
    """
    try:
        content = read_part(Path(checkpoint_path))
        load_weights(model, content["model"])
        if device is not None:
            model.to(device)
        if optimizer is not None:
            optimizer.load_state_dict(content["optimizer"])
    except CheckpointError as error:
        raise TrainingError(str(error)) from error
    except KeyError as error:
        raise TrainingError(f"{checkpoint_path} has no {error}; it is not a file of save_checkpoint()") from error
    except ValueError as error:
        raise TrainingError(f"{checkpoint_path} is of another optimizer: {str(error).splitlines()[0]}") from error
    if scheduler is not None and content["scheduler"] is not None:
        scheduler.load_state_dict(content["scheduler"])
    return {name: content[name] for name in ("epoch", "step", "loss", "config")}


def get_memory_usage() -> dict[str, float]:
    """Return memory in GiB (2³⁰ B).

    Returns:
        ``resident`` and ``peak_resident`` of this process, where the system tells; on an accelerator also
        ``device_allocated``, ``device_reserved`` and ``device_peak``.
    """
    usage = _process_memory()
    if torch.cuda.is_available():
        usage |= {
            "device_allocated": torch.cuda.memory_allocated() / GIB,
            "device_reserved": torch.cuda.memory_reserved() / GIB,
            "device_peak": torch.cuda.max_memory_allocated() / GIB,
        }
    return usage


def _process_memory() -> dict[str, float]:
    """Return what the process holds. Source: proc(5), VmRSS and VmHWM; getrusage(2) elsewhere."""
    status = Path("/proc/self/status")
    if status.is_file():
        lines = (line.partition(":") for line in status.read_text(encoding="utf-8").splitlines())
        sizes = {name: value.split()[0] for name, _, value in lines if name in ("VmRSS", "VmHWM")}
        return {"resident": int(sizes["VmRSS"]) / (1 << 20), "peak_resident": int(sizes["VmHWM"]) / (1 << 20)}
    if sys.platform == "win32":
        return {}
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
    return {"peak_resident": peak / (GIB if sys.platform == "darwin" else 1 << 20)}
