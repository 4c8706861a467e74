"""Recomputation that arguments of Megatron-LM ask for, those of its releases of 2021 and 2022 included.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py, _add_training_args;
megatron/core/transformer/transformer_config.py (recompute_modules).
"""

from __future__ import annotations

import re
from typing import Any

from predictor.core.checks.training import OF_EXPERTS
from predictor.core.workload.run_choices import RecomputeModule
from predictor.formats.megatron.options import Options

METHODS = ("uniform", "block")


def recomputation(options: Options, notes: list[str]) -> dict[str, Any]:
    """Return the keys of ``training`` on recomputation.

    Raises:
        ConfigError: a value is none of Megatron's.
    """
    granularity = options.text("recompute-granularity", "", ("selective", "full"))
    if options.switch("recompute-activations"):
        granularity = "selective"
    older = options.text("activations-checkpoint-method", "", METHODS)
    if options.switch("checkpoint-activations") or older:
        granularity = "full"
    method = options.text("recompute-method", older, METHODS)
    older_count = options.optional_whole("activations-checkpoint-num-layers", least=0)
    count = options.optional_whole("recompute-num-layers", least=0)
    count = older_count if count is None else count
    written = re.findall(r"\w+", str(options.get("recompute-modules") or ""))
    if granularity == "selective":
        return _selective(options, written, notes)
    if granularity == "full" and method == "block":
        return _block(1 if count is None else count)
    if granularity == "full" and (count or 1) > 1:
        return {"recompute": "full", "recompute_group_layers": count}
    return {"recompute": granularity or "none"}


def _block(count: int) -> dict[str, Any]:
    """Return the keys where the first layers of every chunk are recomputed."""
    return {"recompute": "full", "recompute_num_layers": count} if count else {"recompute": "none"}


def _selective(options: Options, written: list[str], notes: list[str]) -> dict[str, Any]:
    """Return the keys where modules of a layer are recomputed; the core of attention where none is named."""
    known = list(RecomputeModule)
    if options.has("hidden-size"):  # otherwise the model is said elsewhere, with or without these
        absent = [] if options.switch("multi-latent-attention") else [RecomputeModule.MLA_UP_PROJECTION]
        absent += [] if options.has("num-experts") else OF_EXPERTS
        known = [module for module in known if module not in absent]
    left_out = [name for name in written if name not in known]
    modules = [str(module) for module in known if module in written]
    if left_out:
        notes.append(f"--recompute-modules {' '.join(left_out)}: not recomputed in this prediction")
    if written and not modules:
        return {"recompute": "none"}
    if modules in ([], [RecomputeModule.CORE_ATTENTION]):
        return {"recompute": "selective"}
    return {"recompute": "selective", "recompute_modules": modules}
