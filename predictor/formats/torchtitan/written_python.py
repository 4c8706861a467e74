"""The sections of a torchtitan job as a configuration in Python, which releases from 0.3 on take instead of TOML.

Source of names: pytorch/torchtitan 0.3.0, torchtitan/trainer.py (Trainer.Config), torchtitan/config/configs.py,
torchtitan/distributed/activation_checkpoint.py and torchtitan/components/quantization.
"""

from __future__ import annotations

from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.sections import RunConfig
from predictor.core.workload.run_choices import GemmRecipe, Recompute

Sections = dict[str, dict[str, Any]]
CHECKPOINTS = {
    Recompute.NONE: "None",
    Recompute.FULL: "FullAC.Config()",
    Recompute.PER_OP: "SelectiveAC.Config()",
}
CONVERTERS = {
    GemmRecipe.FP8_ROWWISE: ("Float8LinearConverter", 'recipe_name="rowwise", filter_fqns=["lm_head"], '),
    GemmRecipe.MXFP8: ("MXFP8LinearConverter", 'fqns=["layers"], '),
    GemmRecipe.NVFP4: ("NVFP4LinearConverter", 'fqns=["layers"], '),
}
JOB = """\
# {title}
# Start it on every node, in the folder of this file, which is FILE.py, with
# {start} --module FILE --config job
# Yours to set: HF_ASSETS_PATH and LEARNING_RATE of the environment; --dataloader.dataset and --training.steps.
import os

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
{imports}from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{name} import model_registry
from torchtitan.trainer import Trainer


def job() -> Trainer.Config:
    model_spec = model_registry("{flavor}"{spec})
    return Trainer.Config(
        model_spec=model_spec,
        hf_assets_path=os.environ["HF_ASSETS_PATH"],
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        optimizer=default_adamw(lr=float(os.environ["LEARNING_RATE"])),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        training=TrainingConfig(
{training}
        ),
        parallelism=ParallelismConfig(
{parallelism}
        ),
        activation_checkpoint={checkpoint},
        compile=CompileConfig({compile}),
    )
"""


def python_job(config: RunConfig, sections: Sections, title: str, start: str) -> str:
    """Return the configuration.

    Args:
        config: a checked configuration.
        sections: of a job, as TOML files have them.
        title: of the file.
        start: the command that starts it, without its arguments.

    Raises:
        ConfigError: torchtitan 0.3 has nothing for a part of it.
    """
    layout, compiled = dict(sections["parallelism"]), dict(sections["compile"])
    _check_experts(config)
    layout.pop("expert_tensor_parallel_degree", None)
    exchange = layout.pop("expert_parallel_comm_backend", None)
    if layout.pop("enable_async_tensor_parallel", False):
        compiled["enable_async_tensor_parallel"] = True
    imports, converters = _converters(config)
    spec = [f', moe_comm_backend="{exchange}"'] if exchange is not None else []
    training = sections["training"] | {"disable_cuda_graphs": not config.training.cuda_graphs}
    return JOB.format(
        title=title,
        start=start,
        imports=imports,
        name=sections["model"]["name"],
        flavor=sections["model"]["flavor"],
        spec="".join([*spec, *converters]),
        training=_keywords(training),
        parallelism=_keywords(layout),
        checkpoint=_checkpoint(config),
        compile=", ".join(f"{key}={value!r}" for key, value in compiled.items()),
    )


def _check_experts(config: RunConfig) -> None:
    """Check that tensor parallelism splits no expert that ranks share out.

    Raises:
        ConfigError: it does.
    """
    layout = config.parallelism
    split = layout.expert_tensor_parallel_size or layout.tensor_parallel_size
    if layout.expert_parallel_size > 1 and split > 1:
        raise ConfigError(
            f"parallelism.expert_tensor_parallel_size is {split}; torchtitan 0.3 has experts whole on a rank, over the "
            "tensor-parallel ranks too: set it to 1, or take --framework-version 0.2"
        )


def _checkpoint(config: RunConfig) -> str:
    training = config.training
    if training.recompute_every > 1 or training.recompute_stops_early:
        key = "recompute_every" if training.recompute_every > 1 else "recompute_stops_early"
        raise ConfigError(f"training.{key} is given; torchtitan 0.3 has none, take --framework-version 0.2")
    if training.recompute not in CHECKPOINTS:
        raise ConfigError(f"training.recompute is {training.recompute}; torchtitan has {', '.join(CHECKPOINTS)}")
    return CHECKPOINTS[training.recompute]


def _converters(config: RunConfig) -> tuple[str, list[str]]:
    """Return the import of the conversion of linear layers, and the argument of the model that names it."""
    recipe = config.training.gemm_recipe
    if recipe is None:
        return "", []
    if recipe not in CONVERTERS:
        raise ConfigError(f"training.gemm_recipe is {recipe}; torchtitan 0.3 has {', '.join(CONVERTERS)}")
    if config.parallelism.gather_precision == "fp8":
        raise ConfigError("parallelism.gather_precision is fp8; torchtitan 0.3 gathers in 16 bits")
    name, options = CONVERTERS[recipe]
    made = f"{name}.Config({options}model_compile_enabled={config.training.compiled})"
    return f"from torchtitan.components.quantization import {name}\n", [f", converters=[{made}]"]


def _keywords(section: dict[str, Any]) -> str:
    lines = [f"            {key}={_literal(value)}," for key, value in section.items()]
    return "\n".join(lines)


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
