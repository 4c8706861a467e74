"""All tests but those of configurations need torch, Fabric, tokenizers and safetensors: estimate-train-time[llm]."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NEEDED = ("lightning_fabric", "numpy", "safetensors", "tokenizers", "torch")
HERE = Path(__file__).parent

collect_ignore = (
    []
    if all(find_spec(name) for name in NEEDED)
    else [path.name for path in HERE.glob("test_*.py") if not path.name.startswith("test_config")]
)
