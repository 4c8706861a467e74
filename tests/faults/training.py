"""One rank of a small real training: a language model with gloo, and the faults that lie inside of the process.

Beside its own arithmetic the model waits in forward and backward passes, in proportion to the tokens, as the host does
for a GPU. So what else the machine does disturbs a step less than if it all were arithmetic on shared cores.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from llm_trainer.config import ModelConfig, TrainingConfig
from llm_trainer.models import TransformerLM
from llm_trainer.training.make_engine import make_engine
from model_training_framework.trainer import TrainingCallback, checkpoint, checkpoint_files
from tests.faults.truth import STEPS, Fault, Kind

VOCABULARY, SEQUENCE, SAMPLES = 256, 32, 2
MODEL = ModelConfig(
    vocab_size=VOCABULARY, d_model=96, n_heads=4, n_layers=1, d_ff=384, max_seq_len=8 * SEQUENCE, dropout=0.0,
    attention_dropout=0.0,
)  # fmt: skip
VALIDATED_EVERY, SAVED_EVERY, SAVED_OFTEN = 45, 30, 8
FORWARD_S, BACKWARD_S = 0.008, 0.012  # of waiting for the device
MB = 1e6
ROOM = 40 * MB  # of a leak's limit, for training itself
SETTLED = 20  # steps, after which training holds what it needs


class Batches:
    """Random batches; slow, or larger, from a step on."""

    def __init__(self, fault: Fault, rank: int, pace: Pace, steps: int = STEPS) -> None:
        self._fault, self._rank, self._pace, self._steps = fault, rank, pace, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        fault = self._fault
        for step in range(1, self._steps + 1):
            is_on = step >= fault.start
            if is_on and fault.kind is Kind.LOADER and (fault.variant == 0 or self._rank == fault.rank):
                time.sleep(fault.size * self._pace.usual_s)
            factor = fault.size if is_on and fault.kind is Kind.BATCH else 1.0
            samples, length = (SAMPLES * factor, SEQUENCE) if fault.variant == 0 else (SAMPLES, SEQUENCE * factor)
            tokens = torch.randint(VOCABULARY, (int(samples), int(length)))
            yield {"input_ids": tokens, "labels": tokens}


class Pace(TrainingCallback):
    """Tells the step outside, and knows the usual one."""

    def __init__(self, told: Any, rank: int) -> None:
        self._told, self._rank = told, rank
        self._times: list[float] = []
        self._at = time.perf_counter()

    @property
    def usual_s(self) -> float:
        """The median step before any fault."""
        times = sorted(self._times[10:45]) or [0.03]
        return times[len(times) // 2]

    def on_step_end(self, trainer: Any, global_step: int) -> None:
        now = time.perf_counter()
        if len(self._times) < 45:
            self._times.append(now - self._at)
        self._at = now
        self._told[self._rank] = global_step


def wait_for_device(module: Any, _given: Any, output: Any) -> None:
    """Wait as for a GPU: a hook of the model's forward passes."""
    scale = output.logits.shape[0] * output.logits.shape[1] / (SAMPLES * SEQUENCE)
    if module.training:
        time.sleep(FORWARD_S * scale)
        output.loss.register_hook(lambda _: time.sleep(BACKWARD_S * scale))


class Leak:
    """Keeps activations of every step, and computes their mean over and over: a metric that is never reset."""

    def __init__(self, fault: Fault) -> None:
        self._start, self._elements = fault.start, int(fault.size * MB / 4)
        self._kept: list[torch.Tensor] = []
        self._step = 0

    def __call__(self, module: Any, _given: Any, _output: Any) -> None:
        if not module.training:
            return
        self._step += 1
        if self._step == SETTLED:
            limit_data(4 * self._elements * (STEPS - self._start + 1) + ROOM)
        if self._step >= self._start:
            self._kept.append(torch.ones(self._elements))
            for kept in self._kept:
                kept.mean()


def limit_data(room_bytes: float) -> None:
    """Limit the memory of this process to what it holds and some room; beyond, allocations fail."""
    held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + int(room_bytes), resource.getrlimit(resource.RLIMIT_DATA)[1]))


def slow_disk(fault: Fault, pace: Pace, told: Any, rank: int) -> None:
    """Let writing a part of a checkpoint take longer from a step on."""
    written = checkpoint_files.write_part

    def write_part(path: Path, content: Any) -> Any:
        entry = written(path, content)
        if told[rank] >= fault.start and path.name.startswith("shared"):
            time.sleep(fault.size * pace.usual_s)
        return entry

    setattr(checkpoint, "write_part", write_part)  # noqa: B010 - the name that it imported


def train(fault: Fault, folder: Path, rank: int, told: Any, host: str = "") -> None:
    """Train one rank to the end; ``told`` gets the number of each step."""
    torch.set_num_threads(1)
    torch.manual_seed(fault.seed)
    if host:
        socket.sethostname(host)
    pace = Pace(told, rank)
    saved_every = SAVED_OFTEN if fault.kind in (Kind.DISK, Kind.RESTART) else SAVED_EVERY
    training = TrainingConfig(
        batch_size=SAMPLES, num_epochs=1, max_steps=STEPS, use_amp=False, save_steps=saved_every,
        eval_steps=VALIDATED_EVERY, eval_strategy="steps", logging_steps=20, warmup_steps=0, max_checkpoints=2,
        checkpoint_dir=str(folder), report_to=[],
    )  # fmt: skip
    engine = make_engine(training, folder, accelerator="cpu", checkpoint_dir=Path(), progress_bar=False)
    engine.add_callback(pace)
    model = TransformerLM(MODEL)
    model.register_forward_hook(wait_for_device)
    if fault.kind is Kind.LEAK and rank == fault.rank:
        model.register_forward_hook(Leak(fault))
    if fault.kind is Kind.DISK:
        slow_disk(fault, pace, told, rank)
    none = Fault(**{**fault.as_dict(), "kind": Kind.NONE})
    validation = Batches(none, rank, pace, steps=2)
    engine.fit(model, engine.make_optimizer(model), Batches(fault, rank, pace), validation)
