"""The optimizer of arguments of Megatron-LM: what it keeps in host memory, and the precision of its states.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py (_add_training_args,
_add_mixed_precision_args), megatron/core/transformer/transformer_config.py (offload_modules) and
megatron/core/optimizer/optimizer_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from predictor.core.workload.muon import ITERATIONS
from predictor.core.workload.run_choices import OffloadModule
from predictor.formats.megatron.options import Options

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
MUON = ("muon", "dist_muon")
STATES = {"main-params-dtype": "fp32", "exp-avg-dtype": "fp32", "exp-avg-sq-dtype": "fp32"}


def as_sections_say(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments from a file whose switch ``cpu_offloading`` decides, whatever number of layers stands beside."""
    if values.get("cpu-offloading") in (True, "True", "true"):
        return dict(values)
    return {key: value for key, value in values.items() if key != "cpu-offloading-num-layers"}


def offloading(options: Options) -> dict[str, Any]:
    """Return the keys of ``training`` on what is in host memory.

    Raises:
        ConfigError: modules are named that are not modelled.
    """
    return _optimizer(options) | _layers(options) | _modules(options)


def _optimizer(options: Options) -> dict[str, Any]:
    fraction = options.real("optimizer-offload-fraction", 1.0)
    is_beside = options.switch("overlap-cpu-optimizer-d2h-h2d")
    if not options.switch("optimizer-cpu-offload"):
        return {}
    return {"offload_optimizer": fraction} | ({"overlap_optimizer_offload": True} if is_beside else {})


def _layers(options: Options) -> dict[str, int]:
    """Return the key of layers whose activations travel; on the command line their number alone asks for it."""
    count = options.optional_whole("cpu-offloading-num-layers", least=0)
    if options.switch("cpu-offloading") and not count:
        options.broken(options.error("cpu-offloading", "write how many layers, --cpu-offloading-num-layers"))
    return {"offload_activation_layers": count} if count else {}


def _modules(options: Options) -> dict[str, list[str]]:
    """Return the key of modules whose inputs travel, a share of which is not modelled."""
    named = re.findall(r"\w+", str(options.get("offload-modules") or ""))
    share = options.real("activation-offload-fraction", 1.0)
    if not options.switch("fine-grained-activation-offloading"):
        return {}
    unknown = [name for name in named if name not in list(OffloadModule)]
    if unknown or not named:
        raise options.error("offload-modules", f"expected of {', '.join(OffloadModule)}")
    if share != 1.0:
        raise options.error("activation-offload-fraction", "only 1 is modelled")
    return {"offload_modules": named}


def optimizer(options: Options) -> dict[str, str]:
    """Return the key of ``training`` on the optimizer; Muon of tensor-parallel ranks is modelled part by part."""
    name = options.text("optimizer", "adam")
    if name not in ("adam", *MUON):
        options.broken(options.error("optimizer", "only adam and muon are modelled"))
    if name not in MUON:
        return {}
    if options.whole("muon-num-ns-steps", ITERATIONS) != ITERATIONS:
        options.broken(options.error("muon-num-ns-steps", f"only {ITERATIONS} are modelled"))
    is_split = options.whole("tensor-model-parallel-size", 1) > 1
    if options.text("muon-tp-mode", "blockwise") != "blockwise" and is_split:
        options.broken(options.error("muon-tp-mode", "only blockwise is modelled beside tensor parallelism"))
    return {"optimizer": "muon"}


def state_bytes(options: Options) -> dict[str, float]:
    """Return the key of ``training`` on the bytes of optimizer state of a parameter, which fp32 leaves out.

    Weights in fp32 are predicted whole: what of them the weights in 16 bits hold already (store_param_remainders)
    differs between releases.
    """
    types = {key: options.text(key, default, BYTES) for key, default in STATES.items()}
    if not options.switch("use-precision-aware-optimizer") or types == STATES:
        return {}
    return {"optimizer_state_bytes": float(sum(BYTES[name] for name in types.values()))}
