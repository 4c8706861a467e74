"""What a recipe of NeMo 2 starts from where NeMo's own code is not beside it: NeMo's recipes and their helpers.

Source: NVIDIA/NeMo 2.4 (Apache-2.0), nemo/collections/llm/recipes/ and scripts/performance/helpers.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_keys
from predictor.core.schema.merging import merged
from predictor.formats.known_keys import speaks_of_cost
from predictor.formats.nemo.tree import KIND, OWN, laid

PRECISION: dict[str, dict[str, Any]] = {
    "bf16_mixed": {"precision": "bf16-mixed", "grad_reduce_in_fp32": True},
    "fp16_mixed": {"precision": "16-mixed", "grad_reduce_in_fp32": False},
    "bf16_with_fp8_mixed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "bf16_with_mxfp8_mixed": {"fp8": "hybrid", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "bf16_with_fp8_current_scaling_mixed": {
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": 1,
        "num_layers_at_end_in_bf16": 1,
        "fp8_param_gather": True,
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {"fp8": "hybrid", "fp8_recipe": "blockwise"},
}
# By the name that set_primary_perf_configs takes.
LOW = {"ds": "bf16_with_fp8_mixed", "delayed": "bf16_with_fp8_mixed", "cs": "bf16_with_fp8_current_scaling_mixed"}
LOW |= {"mxfp8": "bf16_with_mxfp8_mixed", "ss": "bf16_with_fp8_subchannel_scaling_mixed"}
OPTIMIZER = {"config": {"optimizer": "adam", "use_distributed_optimizer": True}}
RECIPES = ("pretrain_recipe", "finetune_recipe")
# What the recipes of recipes.yaml have unless they say otherwise.
COMMON: dict[str, Any] = {
    "trainer": {"devices": 8, "num_nodes": 1, "plugins": PRECISION["bf16_mixed"], "strategy": {}},
    "optim": OPTIMIZER,
}
REDUCED = {"grad_reduce_in_fp32": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
SHARDED = {"data_parallel_sharding_strategy": "optim_grads_params"}  # of Megatron's FSDP alone
PRETRAINED = merged(COMMON, {"trainer": {"strategy": {"ddp": {**REDUCED, **SHARDED}}}})
TUNED = "set_primary_perf_configs"
PARTS = ("trainer", "model", "data", "optim", "peft")
IGNORED = ("name", "dir", "fn", "resume_path", "wandb", "log", "performance_mode", "peft_scheme", "packed_sequence")
# Arguments of a recipe's function, with the keys that they set.
TAKEN = {
    "num_nodes": "trainer.num_nodes",
    "num_gpus_per_node": "trainer.devices",
    "tensor_parallelism": "trainer.strategy.tensor_model_parallel_size",
    "pipeline_parallelism": "trainer.strategy.pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "trainer.strategy.virtual_pipeline_model_parallel_size",
    "context_parallelism": "trainer.strategy.context_parallel_size",
    "expert_parallelism": "trainer.strategy.expert_model_parallel_size",
    "sequence_parallelism": "trainer.strategy.sequence_parallel",
    "global_batch_size": "data.global_batch_size",
    "micro_batch_size": "data.micro_batch_size",
    "seq_length": "data.seq_length",
}


@cache
def _recipes() -> dict[str, Any]:
    return read_keys(Path(__file__).with_name("recipes.yaml"), ConfigError)


def resolved(tree: Any, where: str, notes: list[str]) -> dict[str, Any]:
    """Return a recipe's keys with those of what it starts from.

    Raises:
        ConfigError: it starts from code that is not known here.
    """
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: the run cannot be read; expected a recipe")
    found = _started(tree, where, notes) if "_open" in tree else tree
    trainer = found.get("trainer")
    if isinstance(trainer, dict):
        plugins = trainer.get("plugins")
        trainer = _plain(trainer, where, "trainer")
        trainer = {**trainer, "plugins": _precision(plugins)} if plugins is not None else trainer
        if isinstance(trainer.get("strategy"), dict):
            trainer["strategy"] = _plain(trainer["strategy"], where, "trainer.strategy")
    optim = found.get("optim")
    if isinstance(optim, dict) and str(optim.get(KIND, "")).startswith("distributed_fused_adam"):
        optim = laid(OPTIMIZER, optim)
    model = found.get("model")
    return {**found, "trainer": trainer, "optim": optim, "model": _plain(model, where, "model")}


def _plain(tree: Any, where: str, name: str) -> Any:
    """Return an object's keys.

    Raises:
        ConfigError: its code is not here, so that only some of them are known.
    """
    if isinstance(tree, dict) and "_open" in tree:
        raise ConfigError(
            f"{where}: {name} comes from {tree['_name']} ({tree['_open']}), whose code is not beside the file; read it "
            "inside its source tree"
        )
    return tree


def _precision(plugins: Any) -> Any:
    if isinstance(plugins, list):
        return [_precision(one) for one in plugins]
    name = plugins.get(KIND, "") if isinstance(plugins, dict) and "_open" in plugins else ""
    return laid(PRECISION["bf16_mixed"] | PRECISION[name], plugins) if name in PRECISION else plugins


def _started(tree: dict[str, Any], where: str, notes: list[str]) -> dict[str, Any]:
    """Return the keys of what a function that is not here returns, with those that the code sets of it."""
    kind, arguments = tree[KIND], tree.get("_arguments") or []
    if kind == TUNED and arguments:
        return _tuned(resolved(arguments[0], where, notes), tree)
    named = str(tree["_name"]).split(".")
    row = _recipes().get(named[-2] if len(named) > 1 else "") if kind in RECIPES else None
    if row is None or kind not in row:
        _plain(tree, where, "the run")
    notes.append(f"{where}: {named[-2]}.{kind} is taken as NeMo 2.4 has it")
    base = merged(PRETRAINED if kind == RECIPES[0] else COMMON, row[kind] if row else {})
    if tree.get("performance_mode") is True:
        base = merged(base, base.get("performance", {}))
    own = {key: value for key, value in tree.items() if key not in IGNORED}
    for key, path in TAKEN.items():
        if own.get(key) is not None:
            value: Any = own[key]
            for name in reversed(path.split(".")):
                value = {name: value}
            base = merged(base, value)
    left = [
        key for key in own if key not in TAKEN and key not in PARTS and key not in OWN and speaks_of_cost(key, own[key])
    ]
    if left:
        raise ConfigError(
            f"{where}: {named[-2]}.{kind} is called with {', '.join(left)}, which is not read; set the keys of "
            "the recipe that it returns"
        )
    scheme = tree.get("peft_scheme", "lora")
    if kind == RECIPES[1] and (scheme is None or str(scheme).lower() == "none"):
        base = merged({**base, "peft": None}, base.get("whole", {}))
    elif kind == RECIPES[1] and scheme != "lora":
        base = {**base, "peft": {KIND: str(scheme)}}
    return laid(
        base, {key: value for key, value in own.items() if key in ("trainer", "model", "data", "optim", "peft")}
    )


def _tuned(recipe: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe as NeMo's performance scripts set it."""
    names = {
        "tp_size": "tensor_model_parallel_size",
        "pp_size": "pipeline_model_parallel_size",
        "cp_size": "context_parallel_size",
        "vp_size": "virtual_pipeline_model_parallel_size",
        "ep_size": "expert_model_parallel_size",
        "etp_size": "expert_tensor_parallel_size",
    }
    strategy = {theirs: tree[key] for key, theirs in names.items() if key in tree}
    if strategy.get("virtual_pipeline_model_parallel_size") == 1:
        strategy["virtual_pipeline_model_parallel_size"] = None
    tp = tree.get("tp_size")
    strategy["sequence_parallel"] = type(tp) is int and tp > 1
    strategy |= {"fsdp": "megatron", "ddp": SHARDED} if tree.get("use_mcore_fsdp") is True else {}
    config: dict[str, Any] = {"cross_entropy_fusion_impl": "te", "enable_cuda_graph": tree.get("enable_cuda_graphs")}
    layers = tree.get("recompute_layers") or 0
    if layers:
        config |= {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}
    if tree.get("activation_offload_layers"):
        config |= {"cpu_offloading": True, "cpu_offloading_num_layers": tree["activation_offload_layers"]}
    if tree.get("recompute_modules"):
        config |= {"recompute_granularity": "selective", "recompute_modules": tree["recompute_modules"]}
    trainer: dict[str, Any] = {"strategy": strategy}
    trainer |= {
        theirs: tree[key]
        for key, theirs in (("num_nodes", "num_nodes"), ("num_gpus_per_node", "devices"))
        if key in tree
    }
    optimizer: dict[str, Any] = {}
    if tree.get("compute_dtype") == "fp8":
        low = LOW.get(str(tree.get("fp8_recipe") or "ds"), "")
        trainer["plugins"] = PRECISION["bf16_mixed"] | PRECISION.get(low, {"precision": tree.get("fp8_recipe")})
        trainer["plugins"] |= {"grad_reduce_in_fp32": False, "first_last_layers_bf16": False}
    elif tree.get("compute_dtype") == "bf16":
        optimizer["use_precision_aware_optimizer"] = True
    data = {
        theirs: tree[key] for key, theirs in (("mbs", "micro_batch_size"), ("gbs", "global_batch_size")) if key in tree
    }
    set_so = {"trainer": trainer, "data": data, "model": {"config": config}, "optim": {"config": optimizer}}
    return laid(
        merged(recipe, set_so), {key: tree[key] for key in ("trainer", "model", "data", "optim", "peft") if key in tree}
    )
