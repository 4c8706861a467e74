"""A small training run in any layout, one process per rank, that leaves its losses and its whole model."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from llm_trainer.config import ModelConfig, TrainingConfig
from llm_trainer.models import TransformerLM
from llm_trainer.parallel.engine import ParallelEngine
from llm_trainer.training.make_engine import make_engine
from llm_trainer.training.scheduler import create_scheduler
from tests.ranks import free_port, run_together

DEADLINE_S = 100.0
PACKAGE = f"{os.sep}model_training_framework{os.sep}trainer{os.sep}"
SMALL: dict[str, Any] = {
    "vocab_size": 64, "d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 96, "max_seq_len": 16, "dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "norm": "rms_norm", "position_encoding": "rope", "activation": "swiglu", "use_bias": False, "n_kv_heads": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.llm_trainer.parallel_job", "llm_trainer.parallel.engine"])


@dataclass(frozen=True, slots=True)
class Run:
    """What is trained, on how many ranks, and where a rank is killed.

    Attributes:
        ranks: processes.
        training: fields of TrainingConfig.
        model: fields of ModelConfig beside ``SMALL``.
        samples: sequences of the data.
        has_evaluation: after the second step and at the end.
        kill_at: call within the trainer at which the last rank kills itself.
        signal: that it uses.
    """

    ranks: int = 1
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    samples: int = 32
    has_evaluation: bool = True
    kill_at: int | None = None
    signal: int = signal.SIGKILL


def config_of(run: Run) -> TrainingConfig:
    """Return the run's configuration: eight samples per optimizer step on any layout."""
    settings: dict[str, Any] = {
        "batch_size": 4, "learning_rate": 1e-2, "num_epochs": 1, "warmup_steps": 1, "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5, "use_amp": False, "save_steps": 1, "eval_steps": 2, "logging_steps": 1, "report_to": [],
        "eps": 1e-4,  # keys' biases have no gradient but rounding, which Adam would blow up to whole steps
        "world_size": run.ranks,
    }  # fmt: skip
    return TrainingConfig(**{**settings, **run.training})


def loader(samples: int, batch_size: int, seed: int, shuffle: bool = False) -> Any:
    tokens = torch.randint(
        SMALL["vocab_size"], (samples, SMALL["max_seq_len"]), generator=torch.Generator().manual_seed(seed)
    )
    return DataLoader([{"input_ids": row} for row in tokens], batch_size, shuffle=shuffle)


def train(run: Run, folder: Path) -> dict[str, Any]:
    """Train on this rank."""
    config = config_of(run)
    engine = make_engine(config, folder, accelerator="cpu", progress_bar=False)
    torch.manual_seed(0)
    model = TransformerLM(ModelConfig(**{**SMALL, **run.model}))
    optimizer = engine.make_optimizer(model)
    scheduler = create_scheduler(optimizer, "cosine", 8, 1)
    data_parallel_size = run.ranks // (config.tensor_parallel_size * config.pipeline_parallel_size)
    rows = config.batch_size // data_parallel_size
    evaluation = loader(9, rows, 2) if run.has_evaluation else None  # ranks do not divide 9
    stored = engine.newest_state()
    calls = count_calls(run)
    try:
        engine.fit(model, optimizer, loader(run.samples, rows, 1, shuffle=True), evaluation, scheduler)
    finally:
        sys.setprofile(None)
    whole = engine.whole_model() if isinstance(engine, ParallelEngine) else model if engine.ranks.is_first else None
    if whole is not None:
        whole.save_pretrained(folder / "model")
    return {"calls": calls["calls"], "resumed_at": stored.global_step if stored is not None else 0}


def count_calls(run: Run) -> dict[str, int]:
    """Count calls and returns within the framework's trainer, and kill the last rank at the chosen one."""
    seen = {"calls": 0}
    kill_at = run.kill_at if int(os.environ.get("LOCAL_RANK", "0")) == run.ranks - 1 else None

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if PACKAGE in frame.f_code.co_filename:
            seen["calls"] += 1
            if seen["calls"] == kill_at:
                os.kill(os.getpid(), run.signal)

    sys.setprofile(profile)
    return seen


def main_of_rank(run: Run, folder: str, rank: int, port: int) -> None:
    """Run one rank in this process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(Path(folder) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    if run.ranks > 1:
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": "0",
            "WORLD_SIZE": str(run.ranks),
            "GLOO_SOCKET_IFNAME": "lo",
        }
    torch.save(train(run, Path(folder)), Path(folder) / f"result-{rank}")


def start(run: Run, folder: Path) -> list[int]:
    """Run all ranks and return their exit codes; where one dies, the others are killed, as Slurm does."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    ranks = [_CONTEXT.Process(target=main_of_rank, args=(run, str(folder), rank, port)) for rank in range(run.ranks)]
    return run_together(ranks, DEADLINE_S, (0, 75))


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("rank-*.log")))
