"""The LLM trainer's tests need its packages: pip install 'estimate-train-time[train,reference]'."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("torch", "lightning_fabric", "tokenizers", "safetensors", "transformers")
collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]
