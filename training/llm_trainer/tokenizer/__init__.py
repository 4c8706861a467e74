"""Byte-level BPE: any text to token ids and back, exactly. Imports no torch."""

from __future__ import annotations

from llm_trainer.tokenizer.bpe import BPETokenizer

__all__ = ["BPETokenizer"]
