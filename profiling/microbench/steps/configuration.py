"""Configurations of recorded steps: the predictor's own, and the check that a single device can run them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from microbench.errors import MeasureError
from predictor.core.base.errors import ConfigError, MissingKeyError, nearest
from predictor.core.plan import short_config
from predictor.core.plan.loading import read_config
from predictor.core.plan.to_run import to_run
from predictor.core.schema.inherited_keys import completed
from predictor.core.schema.sections import validate
from predictor.core.schema.software import with_software
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.software import Framework
from predictor.core.workload.special_features import special_features
from predictor.core.workload.switches import QkNorm
from predictor.core.workload.transformer import Activation, Attention

CONFIGS = Path(__file__).resolve().parents[2] / "steps"
# Keys on the system and the budget; they do not change the step.
NOT_OF_THE_STEP = ("system", "gpu", "budget")


@dataclass(frozen=True, slots=True)
class StepConfig:
    """One step to record.

    Attributes:
        name: of the file, without its ending.
        content: what the predictor reads, other files and presets taken in, without the system.
        run: what it means, on a single device.
    """

    name: str
    content: dict[str, Any]
    run: TrainingRun

    @property
    def hash(self) -> str:
        """Return the SHA-256 of the content, whatever the order of its keys."""
        return sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()

    @property
    def flops(self) -> float:
        """Return the FLOPs of one step, forward and backward."""
        return self.run.model_flops_per_token * self.run.tokens_per_step


def unsupported(run: TrainingRun) -> list[str]:
    """Return the settings of a run that the recorded step does not implement, as its configuration names them."""
    model, layout = run.model, run.layout
    has_main_weights = run.precision == "bf16"
    refused = {
        "parallelism of more than one GPU": layout.num_gpus > 1,
        "virtual_pipeline_parallel_size above 1": run.virtual_pipeline_parallel_size > 1,
        f"zero_stage {run.zero_stage} (nothing is shared out; use 0)": run.zero_stage > 0,
        "fp32_gradients: false with bf16 (use true)": has_main_weights and not run.fp32_gradients,
        "precision fp16 (no loss scaling; use bf16)": run.precision == "fp16",
        f"recompute {run.recompute}": run.recompute is not Recompute.NONE,
        "synchronize_each_layer": run.synchronize_each_layer,
        "moe": model.experts is not None,
        "sliding_window": model.sliding_window > 0,
        f"attention {model.attention} (use flash)": model.attention is not Attention.FLASH,
        "causal: false": not model.causal,
        f"rotary_fraction {model.rotary_fraction:g} (use 0 or 1)": model.rotary_fraction not in (0.0, 1.0),
        "rotary positions in a head of odd width": model.rotary_fraction > 0 and model.head_dim % 2 == 1,
        f"activation {model.activation}": model.activation not in (Activation.GELU, Activation.SWIGLU),
        "parallel_residual": model.parallel_residual,
        "qk_norm": model.qk_norm is not QkNorm.NONE,
        "post_norms": model.post_norms,
        "attention_dropout": model.attention_dropout > 0,
        "hidden_dropout": model.hidden_dropout > 0,
        "fused_side_kernels (plain PyTorch has no such kernel)": model.fused_side_kernels,
        "fused_rope (plain PyTorch has no such kernel)": model.fused_rope,
        "layer_operators": model.layer_operators is not None,
    }
    beyond = special_features(model) + (["lora"] if run.lora is not None else [])
    return [name for name, is_refused in refused.items() if is_refused] + beyond


def read_step(path: Path) -> StepConfig:
    """Read one configuration in the full form.

    Raises:
        MeasureError: it is no configuration, or says something that the recorded step does not implement.
    """
    try:
        content, base = read_config(path)
        if short_config.is_short(content):
            raise MeasureError(f"{path} has the short form; a step's configuration has the full form")
        content, _ = completed(content, base)
        is_named = "framework" in (content.get("training") or {})
        config = validate(with_software(content, Framework.MEGATRON_LM, "bf16")[0])
        run = to_run(config, config.parallelism.gpus_per_node or 1)
    except (ConfigError, MissingKeyError, yaml.YAMLError) as error:
        raise MeasureError(f"{path}: {error}") from None
    refused = unsupported(run)
    if refused:
        way_out = "" if is_named else "; it is plain PyTorch, so say training.framework: pytorch"
        raise MeasureError(f"{path}: a recorded step does not have {', '.join(refused)}{way_out}")
    kept = {key: value for key, value in content.items() if key not in NOT_OF_THE_STEP}
    if config.training.framework is Framework.PYTORCH:  # as every recorded step; records from before the name keep on
        kept["training"] = {key: value for key, value in content["training"].items() if key != "framework"}
    return StepConfig(path.stem, kept, run)


def read_steps(folder: Path, only: list[str] | None = None) -> list[StepConfig]:
    """Read a folder's configurations, in order of increasing work.

    Args:
        folder: of YAML files.
        only: names without their ending; None for all.

    Raises:
        MeasureError: the folder has none, a name is not among them, or one of them cannot be run.
    """
    paths = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if not paths:
        raise MeasureError(f"{folder} has no configuration of a step (*.yaml)")
    for name in only or ():
        if name not in paths:
            raise MeasureError(f"{name} is not a step.{nearest(name, list(paths))} Known: {', '.join(paths)}")
    return sorted((read_step(paths[name]) for name in only or paths), key=lambda config: config.flops)
