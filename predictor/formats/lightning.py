"""Read the trainer of a LightningCLI configuration; the model is a class of the user's own.

Source of names and defaults: Lightning-AI/pytorch-lightning 2.5, src/lightning/pytorch/trainer/trainer.py (Trainer),
src/lightning/pytorch/strategies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import LIGHTNING, LIGHTNING_DEEPSPEED, LIGHTNING_FSDP, TORCH_ATTENTION
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.fsdp_stack import ON_HOST, STATES_16
from predictor.formats.hub_models import known_model, shape_of
from predictor.formats.known_keys import known_keys, rest

FAMILY = "lightning"
KEYS = "lightning"
PRECISIONS = {
    **dict.fromkeys(("bf16-mixed", "bf16"), ("bf16", False)),
    **dict.fromkeys(("16-mixed", "16"), ("fp16", False)),
    "bf16-true": ("bf16", True),
    "16-true": ("fp16", True),
    **dict.fromkeys(("32-true", "32", "None"), ("fp32", True)),
}
# ZeRO stage by the beginning of a strategy's name or class.
STRATEGIES = {
    "auto": 0,
    "ddp": 0,
    "DDPStrategy": 0,
    "SingleDeviceStrategy": 0,
    "fsdp": 3,
    "FSDPStrategy": 3,
    "deepspeed_stage_1": 1,
    "deepspeed_stage_2": 2,
    "deepspeed_stage_3": 3,
    "deepspeed": 2,
    "DeepSpeedStrategy": 2,
}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration.

    Args:
        path: the YAML file.
        num_gpus: GPUs of the run, where the file leaves them open.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each problem.
    """
    problems, notes, unsaid = Problems(), list[str](), dict[str, str]()
    whole = Fields(load_foreign(path.read_text(encoding="utf-8")), path.name, problems=problems.lines)
    trainer, nothing = whole.section("trainer"), dict[str, Any]
    precision, pure = PRECISIONS[str(trainer.get("precision"))] if _has_precision(trainer) else ("fp32", True)
    parallelism = problems.part(nothing(), _strategy, trainer, precision, pure)
    offloaded = problems.part(nothing(), _offloaded, trainer, parallelism.get("zero_stage", 0))
    gpus = settled_gpus(num_gpus, _gpus(trainer), path.name, notes)
    if gpus is None:
        unsaid["parallelism.data_parallel_size"] = f"{path.name}: devices are all that a node has"
    else:
        parallelism["data_parallel_size"] = gpus
    training: dict[str, Any] = {
        "num_micro_batches": trainer.whole("accumulate_grad_batches", 1),
        "precision": precision,
        "attention_kernel": str(TORCH_ATTENTION),
        "framework": FAMILY,
    }
    training |= offloaded
    training |= {"optimizer_state_bytes": STATES_16} if pure and precision != "fp32" else {}
    batch = _batch(whole.values.get("data"))
    if batch is None:
        unsaid["training.micro_batch_size"] = f"{path.name}: no batch_size stands under data"
    else:
        training["micro_batch_size"] = batch
    model = _model(whole, notes, unsaid)
    notes += rest(known_keys(KEYS), "Lightning", [trainer])
    problems.check()
    return Read({"model": model, "parallelism": parallelism, "training": training}, tuple(notes), unsaid=unsaid)


def _has_precision(trainer: Fields) -> bool:
    value = str(trainer.get("precision"))
    if value not in PRECISIONS:
        trainer.broken(trainer.error("precision", f"expected {', '.join(sorted(PRECISIONS))}"))
    return value in PRECISIONS


def _gpus(trainer: Fields) -> int | None:
    """Return the GPUs of the run; None where they are all that there are."""
    devices, nodes = trainer.get("devices"), trainer.whole("num_nodes", 1)
    if isinstance(devices, list):
        return len(devices) * nodes
    if isinstance(devices, str) and "," in devices:
        return len([device for device in devices.split(",") if device.strip()]) * nodes
    return None if devices in (None, "auto", -1, "-1") else trainer.whole("devices") * nodes


def _named(trainer: Fields) -> tuple[str, dict[str, Any]]:
    """Return the strategy by its name or class, and its arguments."""
    value = trainer.get("strategy") or "auto"
    given = value.get("init_args") or {} if isinstance(value, dict) else {}
    return str(value.get("class_path", "") if isinstance(value, dict) else value).rpartition(".")[2], given


def _offloaded(trainer: Fields, stage: int) -> dict[str, Any]:
    """Return the keys of ``training`` on states in host memory.

    Source: lightning/pytorch/strategies/deepspeed.py (deepspeed_stage_2_offload, deepspeed_stage_3_offload; pin_memory
    false) and fsdp.py (cpu_offload).

    Raises:
        ConfigError: they are on disks.
    """
    name, given = _named(trainer)
    if "nvme" in name or "nvme" in [str(value) for key, value in given.items() if key.startswith("offload")]:
        raise trainer.error("strategy", "states on NVMe are not modelled; offload to the CPU")
    if not name.lower().startswith("deepspeed"):
        return dict(ON_HOST) if stage == 3 and (given.get("cpu_offload") or "offload" in name) else {}
    keys: dict[str, Any] = {}
    if "offload" in name or given.get("offload_optimizer"):
        keys = {"offload_optimizer": 1.0}
    if stage == 3 and ("offload" in name or given.get("offload_parameters")):
        keys |= {"offload_parameters": True, "framework": "deepspeed"}
    return keys | ({"pinned_offload": bool(given.get("pin_memory"))} if keys else {})


def _strategy(trainer: Fields, precision: str, pure: bool) -> dict[str, Any]:
    """Return how weights are sharded and gradients reduced.

    Raises:
        ConfigError: the strategy is not modelled.
    """
    name, given = _named(trainer)
    found = next((stage for start, stage in STRATEGIES.items() if name.startswith(start)), None)
    if found is None:
        raise trainer.error("strategy", f"modelled: {', '.join(STRATEGIES)}")
    stage = given.get("stage", found)
    is_deepspeed = name.lower().startswith("deepspeed")
    stack = LIGHTNING_DEEPSPEED if is_deepspeed else LIGHTNING if stage == 0 else LIGHTNING_FSDP
    keys = stack.section("parallelism") | {"zero_stage": stage}
    if not is_deepspeed:
        keys["fp32_parameters"] = not pure and precision != "fp32"
    if stack is LIGHTNING:
        keys["fp32_gradients"] = not pure and precision != "fp32"
    if given.get("sharding_strategy") == "SHARD_GRAD_OP":
        keys["reshard_after_forward"] = False
    return keys


def _batch(value: Any) -> int | None:
    """Return the batch size of a data module."""
    held = value.get("init_args", value) if isinstance(value, dict) else {}
    sizes = [held.get(key) for key in ("batch_size", "train_batch_size", "micro_batch_size")]
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _model(whole: Fields, notes: list[str], unsaid: dict[str, str]) -> dict[str, Any]:
    """Return the section ``model``: of a model of the hub that its class is given, else nothing, with why."""
    value = whole.values.get("model")
    held = value.get("init_args", value) if isinstance(value, dict) else {}
    names = [item for key, item in held.items() if isinstance(item, str) and ("model" in key or "name" in key)]
    chosen = next((known for name in names if (known := known_model(name)) is not None), None)
    unsaid["model.sequence_length"] = f"{whole.where}: the model is a class of one's own, whose samples are not said"
    if chosen is not None:
        notes += [f"{whole.where}: the model has the sizes of {chosen.source}", *chosen.notes]
        unsaid |= chosen.unsaid
        sizes = {key: size for key, size in shape_of(chosen.section).items() if key != "sequence_length"}
        return sizes | {"loss": "torch"}
    unsaid["model.num_layers"] = (
        f"{whole.where}: the model is a class of one's own; take a config.json with its sizes in front "
        f"(from: [config.json, {whole.where}]), or"
    )
    return {"loss": "torch"}
