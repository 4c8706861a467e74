"""Measure how the trainer learns: ``python -m tests.llm_trainer.bench_learning``. Prints; it decides no test.

On the sources of Python's own standard library, a GPT-2-like and a LLaMA-like model are trained beside a plain loop
over transformers' model with the same initial weights, data in the same order, optimizer and schedule, in float32 and
without dropout. Goals: losses within 2 %, tokens per second at least those of the plain loop. The two take turns of
a few steps, so that what else the machine does touches both; medians are printed. Both use one thread.
"""

from __future__ import annotations

import argparse
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from llm_trainer.config import TrainingConfig
from llm_trainer.data import LanguageModelingDataset, create_dataloader
from llm_trainer.models import TransformerLM
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.training.engine import Engine
from llm_trainer.training.optimizer import create_optimizer
from llm_trainer.training.scheduler import create_scheduler
from model_training_framework.trainer import TrainingCallback

VOCABULARY = 4096
SEQUENCE = 256
WIDTH, LAYERS, HEADS = 256, 4, 4
BATCH = 4
WARM_UP = 20
RATE = 1e-3
TURN = 5  # steps of one side before the other has its turn
WINDOW = 10  # steps over which losses are averaged before they are compared
WARM_TURNS = 2
CHARACTERS = 6_000_000


def standard_library() -> Iterator[str]:
    """Yield the sources of the standard library, its tests left out, up to a number of characters."""
    folder, left = Path(sysconfig.get_path("stdlib")), CHARACTERS
    for path in sorted(folder.rglob("*.py")):
        if left > 0 and not {"test", "tests", "idlelib", "site-packages"} & set(path.parts):
            text = path.read_text(encoding="utf-8", errors="replace")
            left -= len(text)
            yield text


def gpt2() -> Any:
    """Return transformers' GPT-2 of the bench's size."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def llama() -> Any:
    """Return transformers' LLaMA of the bench's size, with two query heads per key and value head."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, max_position_embeddings=SEQUENCE, hidden_size=WIDTH, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, intermediate_size=704, use_cache=False,
            tie_word_embeddings=False,
        )
    )  # fmt: skip


@dataclass
class Side:
    """What one side measured: a loss per step, and tokens per second per turn."""

    losses: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)


class Keeping(Engine):
    """The engine, which also keeps the batches of its turn for the other side."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.batches.append(batch["input_ids"])
        result = super().training_step(batch, batch_idx)
        self.turn_losses.append(result["loss"].detach())
        return result

    batches: list[Any]
    turn_losses: list[Any]


class PlainLoop(TrainingCallback):
    """After every turn of the engine, transformers' model takes the same batches in a plain loop."""

    def __init__(self, model: Any, config: TrainingConfig, steps: int) -> None:
        self.model = model.train()
        self.optimizer = create_optimizer(model, config.optimizer, config.learning_rate, config.weight_decay)
        self.scheduler = create_scheduler(self.optimizer, config.lr_scheduler, steps, WARM_UP, config.min_lr_ratio)
        self.max_grad_norm = config.max_grad_norm
        self.engine_side, self.own_side = Side(), Side()
        self.started = time.perf_counter()

    def on_step_end(self, trainer: Any, global_step: int) -> None:
        if global_step % TURN:
            return
        self._note(self.engine_side, trainer.turn_losses)
        self._note(self.own_side, [self._step(batch) for batch in trainer.batches])
        trainer.batches.clear()
        trainer.turn_losses.clear()
        self.started = time.perf_counter()

    def _note(self, side: Side, losses: list[Any]) -> None:
        now = time.perf_counter()
        side.tokens_per_second.append(TURN * BATCH * SEQUENCE / (now - self.started))
        side.losses += [float(loss) for loss in losses]
        self.started = time.perf_counter()

    def _step(self, batch: Any) -> Any:
        loss = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def compare(theirs: Any, samples: LanguageModelingDataset, steps: int) -> tuple[Side, Side]:
    """Train both sides from the same weights, and return the engine's and the plain loop's measurements."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = TransformerLM.from_pretrained(folder)
        ours.train()
        config = TrainingConfig(
            batch_size=BATCH, learning_rate=RATE, max_steps=steps, num_epochs=1000, use_amp=False, save_steps=0,
            report_to=[], seed=1, checkpoint_dir=folder,
        )  # fmt: skip
        engine = Keeping(config, folder, progress_bar=False, accelerator="cpu")
        engine.batches, engine.turn_losses = [], []
        plain = PlainLoop(theirs, config, steps)
        engine.add_callback(plain)
        optimizer = engine.make_optimizer(ours)
        scheduler = create_scheduler(optimizer, config.lr_scheduler, steps, WARM_UP, config.min_lr_ratio)
        loader = create_dataloader(samples, BATCH, shuffle=True, drop_last=True)
        engine.fit(ours, optimizer, loader, scheduler=scheduler)
    return plain.engine_side, plain.own_side


def difference(ours: Side, theirs: Side) -> float:
    """Return the largest relative difference of two loss curves, averaged over WINDOW steps."""
    means = [
        [statistics.fmean(side.losses[at : at + WINDOW]) for at in range(0, len(side.losses) - WINDOW + 1, WINDOW)]
        for side in (ours, theirs)
    ]
    ours_mean, theirs_mean = means
    return max(abs(a - b) / b for a, b in zip(ours_mean, theirs_mean, strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of each run")
    steps = parser.parse_args().steps // TURN * TURN
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    texts = list(standard_library())
    tokenizer = BPETokenizer()
    tokenizer.train(texts, vocab_size=VOCABULARY)
    samples = LanguageModelingDataset(texts, tokenizer, SEQUENCE)
    print(
        f"{sum(map(len, texts)):,} characters, {len(samples):,} samples of {SEQUENCE} tokens, {steps} steps of {BATCH}"
    )
    print(f"{'model':8}{'loss, first':>12}{'last':>8}{'transformers':>14}{'difference':>12}{'tokens/s':>10}"
          f"{'transformers':>14}{'ratio':>8}  goals: difference ≤ 2 %, ratio ≥ 1.0")  # fmt: skip
    for name, make in (("GPT-2", gpt2), ("LLaMA", llama)):
        torch.manual_seed(0)
        ours, theirs = compare(make(), samples, steps)
        speeds = [side.tokens_per_second[WARM_TURNS:] for side in (ours, theirs)]
        ratio = statistics.median(a / b for a, b in zip(*speeds, strict=True))
        ends = ours.losses[:WINDOW], ours.losses[-WINDOW:], theirs.losses[-WINDOW:]
        first, last, other = map(statistics.fmean, ends)
        losses = f"{first:>12.4f}{last:>8.4f}{other:>14.4f}{100 * difference(ours, theirs):>11.3f}%"
        medians = f"{statistics.median(speeds[0]):>10,.0f}{statistics.median(speeds[1]):>14,.0f}"
        print(f"{name:8}{losses}{medians}{ratio:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
