"""Decoder-only transformers, saved as safetensors and JSON."""

from llm_trainer.models.kv_cache import KVCache
from llm_trainer.models.transformer import ModelOutput, TransformerLM

__all__ = ["KVCache", "ModelOutput", "TransformerLM"]
