"""How tokens reach their experts in Megatron-LM, and which parts of a layer are in CUDA graphs.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py (_add_moe_args, _add_training_args) and
megatron/core/transformer/moe/token_dispatcher.py.
"""

from __future__ import annotations

import re
from typing import Any

from predictor.core.workload.run_choices import GraphModule
from predictor.formats.megatron.options import Options

DISPATCHERS = {"allgather": "all_gather", "alltoall": "all_to_all", "alltoall_seq": "all_to_all"}
FLEXIBLE = ("deepep", "hybridep")
GRAPHS = ("none", "local", "transformer_engine", "full_iteration")
WHOLE_GRAPHS = ("full", "full_iteration")


def exchange(options: Options) -> dict[str, Any]:
    """Return the keys of ``parallelism`` on the traffic of experts; nothing where all ranks hold all experts."""
    name = options.text("moe-token-dispatcher-type", "allgather", (*DISPATCHERS, "flex"))
    older = options.switch("moe-enable-deepep")
    backend = options.text("moe-flex-dispatcher-backend", "deepep", FLEXIBLE)
    beside = options.switch("overlap-moe-expert-parallel-comm")
    if options.whole("expert-model-parallel-size", 1) == 1:
        return {}
    chosen = (
        "deepep" if older and name == "flex" else backend if name == "flex" else DISPATCHERS.get(name, "all_to_all")
    )
    keys: dict[str, Any] = {"expert_dispatcher": chosen} if chosen != "all_to_all" else {}
    return keys | ({"overlap_expert_parallel": True} if beside else {})


def cuda_graphs(options: Options, notes: list[str]) -> dict[str, Any]:
    """Return the key for CUDA graphs: of everything, or of modules of a layer, with a note where one is not known."""
    older = [options.switch(key) for key in ("enable-cuda-graph", "external-cuda-graph")]
    scopes = [key for key in ("cuda-graph-scope", "cuda-graph-modules") if options.get(key) is not None]
    if options.text("cuda-graph-impl", "none", GRAPHS) == "none" and not any(older):
        return {}
    words = [word for key in scopes for word in re.findall(r"[a-z_]+", options.text(key, "full"))]
    if not words or set(words) & set(WHOLE_GRAPHS):
        return {"cuda_graphs": True}
    known = [str(module) for module in GraphModule if module in words]
    others = sorted(set(words) - set(known))
    if others:
        notes.append(f"{options.named(scopes[0])} {' '.join(others)}: predicted without CUDA graphs of these")
    return {"cuda_graphs": known} if known else {}
