"""Judge command lines by Megatron-LM's own parser and validators, in the release that PYTHONPATH has.

Usage: judge_megatron.py CASES VERDICTS. The first file is a list of {"arguments": [...], "world_size": N} as JSON, the
second becomes a list of what is refused, null where nothing is. No GPU, Transformer Engine or Triton is at hand, so
their versions and the GPU's are those of a usual machine; no check of Megatron-LM's own is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import os
import sys
import types
import typing
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import typing_extensions
from packaging.version import Version

from tests.written.stand_ins import stand_in

CAPABILITY = (9, 0)
TRANSFORMER_ENGINE = Version("2.17.0")


class FusedAdam:
    """The arguments of Transformer Engine's optimizer that Megatron-LM asks for."""

    def __init__(
        self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: bool
    ) -> None: ...


def prepare() -> Any:
    """Return the module of Megatron-LM's arguments, on a machine with Hopper GPUs as far as it asks."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    stand_in("triton", ("paged_stash",))
    typing.override = typing_extensions.override  # type: ignore[attr-defined] # Python 3.12
    torch.cuda.get_device_capability = lambda *_: CAPABILITY
    torch.cuda.get_device_properties = lambda *_: argparse.Namespace(major=CAPABILITY[0], minor=CAPABILITY[1])
    import megatron.core.utils

    megatron.core.utils._te_version = TRANSFORMER_ENGINE
    import megatron.core.models.common.embeddings.rope_utils as rope

    for kernel in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
        setattr(rope, kernel, MagicMock())
    import megatron.training.arguments

    parts = "transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers"
    sys.modules |= {name: types.ModuleType(name) for name in parts}
    sys.modules[parts[-1]].FusedAdam = FusedAdam  # type: ignore[attr-defined]
    return megatron.training.arguments


def start(megatron: Any, arguments: list[str], world_size: int) -> None:
    """Do what a program does with its arguments before it builds a model."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    os.environ["NVTE_CPU_OFFLOAD_V1"] = "1"  # as a script that offloads says
    sys.argv = ["pretrain.py", *arguments]
    args = megatron.parse_args()
    megatron.validate_args(args)
    config = megatron.core_transformer_config_from_args(args)
    batch = args.micro_batch_size * args.data_parallel_size
    assert args.global_batch_size % batch == 0, "the global batch is no multiple of micro-batch and replicas"
    if config.virtual_pipeline_model_parallel_size is not None:
        # megatron/core/pipeline_parallel/schedules.py: interleaved micro-batches come in groups of the pipeline's size.
        group = args.microbatch_group_size_per_vp_stage or args.pipeline_model_parallel_size
        assert args.global_batch_size // batch % group == 0, "micro-batches are no multiple of a group of them"
    if importlib.util.find_spec("megatron.training.argument_utils") is None:
        return
    from megatron.training import argument_utils

    if hasattr(argument_utils, "pretrain_cfg_container_from_args"):
        kind = "hybrid" if args.hybrid_layer_pattern else "gpt"
        of_model = getattr(argument_utils, f"{kind}_config_from_args", lambda _: None)
        argument_utils.pretrain_cfg_container_from_args(args, of_model(args))


def judge(megatron: Any, arguments: list[str], world_size: int) -> str | None:
    """Return what is refused, None where nothing is."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            start(megatron, arguments, world_size)
    except SystemExit:
        return said.getvalue()[-500:]
    except (AssertionError, ValueError, TypeError, RuntimeError, ImportError) as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    cases, verdicts = map(Path, sys.argv[1:])
    module = prepare()
    found = [judge(module, **case) for case in json.loads(cases.read_text(encoding="utf-8"))]
    verdicts.write_text(json.dumps(found), encoding="utf-8")
