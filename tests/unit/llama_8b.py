"""LLaMA 3 8B, as several tests run it."""

from __future__ import annotations

from predictor.core.workload.transformer import Activation, Transformer

LLAMA_8B = Transformer(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=8,
    ffn_hidden_size=14336,
    sequence_length=8192,
    vocab_size=128256,
    activation=Activation.SWIGLU,
)
