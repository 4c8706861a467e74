"""Measure how fast a model trains beside transformers' own: ``python -m tests.llm_trainer.bench_model``.

Forward and backward passes of the same weights on the same tokens, on one thread of a CPU, without dropout where the
name does not say so. Both sides alternate in one process, each round in the other order, and CPU time counts, so
that other programs hardly matter. Prints; timing decides no test (goal: at least as many tokens per second).
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import transformers

from llm_trainer.models import TransformerLM
from llm_trainer.models.hugging_face import read_model_config, take_weights
from tests.bench_trainer import keep_freed_memory

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 4096, 256, 8, 4, 256, 4
ROUNDS, WARM_UP = 20, 2


def gpt2(activation: str = "gelu_new", dropout: float = 0.0) -> Any:
    """Return a GPT-2; gelu_new, its own activation, is computed there in several kernels."""
    sizes = {"n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_positions": LENGTH}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "activation_function": activation}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, **sizes, **rates))


def llama(num_key_value_heads: int = HEADS) -> Any:
    """Return a LLaMA."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=688,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=num_key_value_heads,
        max_position_embeddings=LENGTH,
    )
    return transformers.LlamaForCausalLM(config)


def seconds(model: Any, tokens: Any) -> float:
    """Return the CPU time of a forward and a backward pass."""
    started = time.process_time()
    model(input_ids=tokens, labels=tokens).loss.backward()
    elapsed = time.process_time() - started
    model.zero_grad(set_to_none=True)
    return elapsed


def compared(name: str, theirs: Any) -> str:
    """Return a line of the table."""
    theirs.config.use_cache = False
    config = read_model_config(theirs.config.to_dict())
    ours = TransformerLM(config)
    ours.load_state_dict(take_weights(config, theirs.state_dict()))
    sides, tokens = (ours.train(), theirs.train()), torch.randint(VOCABULARY, (BATCH, LENGTH))
    times: tuple[list[float], list[float]] = ([], [])
    for step in range(WARM_UP + ROUNDS):
        for side in (0, 1) if step % 2 else (1, 0):
            elapsed = seconds(sides[side], tokens)
            if step >= WARM_UP:
                times[side].append(elapsed)
    speeds = [BATCH * LENGTH / statistics.median(each) for each in times]
    low, middle, high = statistics.quantiles([b / a for a, b in zip(*times, strict=True)], n=4)
    by_round = f"{middle:.3f} ({low:.3f}–{high:.3f})"
    return f"{name:24}{speeds[0]:>10,.0f}{speeds[1]:>14,.0f}{speeds[0] / speeds[1]:>8.3f}{by_round:>22}"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    print(f"{'tokens per second':24}{'ours':>10}{'transformers':>14}{'ratio':>8}{'by round (quartiles)':>22}")
    for name, model in (
        ("GPT-2", gpt2()),
        ("GPT-2, exact gelu", gpt2("gelu")),
        ("GPT-2, dropout 0.1", gpt2(dropout=0.1)),
        ("LLaMA", llama()),
        ("LLaMA, 2 of 8 kv heads", llama(2)),
    ):
        print(compared(name, model), flush=True)


if __name__ == "__main__":
    main()
