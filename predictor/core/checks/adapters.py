"""Check adapters against the layers that the model has, and the ranks that split them."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import must_divide
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.sections import TrainingSection
from predictor.core.transforms.few_bits import QuantizedBase
from predictor.core.transforms.lora import EVERY_LINEAR, EVERY_PART, PARTS, Lora, LoraTarget
from predictor.core.workload.transformer import Transformer

KEY = "training.lora.targets"


def present_targets(model: Transformer) -> list[LoraTarget]:
    """Return the targets that a layer of the model has."""
    alone = {target: Lora(1, (target,)) for target in LoraTarget}
    return [
        target
        for target, lora in alone.items()
        if any(lora.chosen(row) for kind in model.kinds for row in model.layer_rows(kind))
    ]


def check_lora(model: Transformer, training: TrainingSection, layout: ParallelismSection) -> None:
    """Refuse adapters of linear layers that are not there, twice of the same, or that ranks cannot split.

    Raises:
        ConfigError: they are such.
    """
    lora = training.lora
    if lora is None:
        return
    present = present_targets(model)
    known = ", ".join(present)
    if not lora.targets:
        raise ConfigError(f"{KEY} is []; name one of {known}")
    absent = [target for target in lora.targets if target not in present]
    if absent and lora.targets not in (EVERY_LINEAR, EVERY_PART):
        raise ConfigError(f"{KEY} has {absent[0]}; no layer of the model has it. Its layers have: {known}")
    for whole, parts in PARTS.items():
        twice = [part for part in parts if part in lora.targets]
        if whole in lora.targets and twice:
            raise ConfigError(f"{KEY} has {whole} and {twice[0]}, which is a part of it; leave one out")
    _check_ranks(lora, model, layout)
    _check_expert_weights(lora, model, layout)
    if lora.quantized_base is QuantizedBase.INT8 and model.experts is not None:
        raise ConfigError("training.lora.quantized_base is int8; of experts only four bits are modelled: write nf4")
    if lora.quantized_base is QuantizedBase.INT8 and layout.zero_stage >= 3:
        raise ConfigError(
            "parallelism.zero_stage is 3 with training.lora.quantized_base int8; of weights in few bits those in four "
            "are sharded alone: write nf4, or zero_stage 0, 1 or 2"
        )
    if lora.quantized_base is not None and training.gemm_recipe is not None:
        raise ConfigError(
            f"training.gemm_recipe is {training.gemm_recipe} with training.lora.quantized_base, whose products run in "
            "16 bits; leave gemm_recipe out"
        )


def _check_expert_weights(lora: Lora, model: Transformer, layout: ParallelismSection) -> None:
    """Refuse adapters in experts' weights beside what PEFT refuses, or does not have."""
    if not lora.expert_weights:
        return
    key = "training.lora.expert_weights is true"
    if model.experts is None:
        raise ConfigError(f"{key}; the model has no experts (model.moe)")
    if layout.tensor_parallel_size > 1:
        raise ConfigError(
            f"{key} with tensor_parallel_size {layout.tensor_parallel_size}, which is not modelled; use 1"
        )
    beside = {
        "share_expert_adapters": lora.share_expert_adapters,
        "dora": lora.dora,
        "dropout": lora.dropout > 0,
        "quantized_base": lora.quantized_base is not None,
    }
    for name, is_on in beside.items():
        if is_on:
            raise ConfigError(f"{key} with training.lora.{name}, which adapters in weights do not have; turn it off")


def _check_ranks(lora: Lora, model: Transformer, layout: ParallelismSection) -> None:
    must_divide("tensor_parallel_size", layout.tensor_parallel_size, "rank", lora.rank)
    if lora.dora and layout.tensor_parallel_size > 1:
        raise ConfigError(
            f"tensor_parallel_size is {layout.tensor_parallel_size} with training.lora.dora, which is not modelled; "
            "use 1"
        )
    if not lora.normalize_moe_lora:
        return
    if model.experts is None:
        raise ConfigError("training.lora.normalize_moe_lora is true; the model has no experts (model.moe)")
    must_divide("experts_per_token", model.experts.experts_per_token, "rank", lora.rank)
