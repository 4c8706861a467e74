"""How a Trainer's run is laid out over GPUs: DDP, FSDP or DeepSpeed, from its arguments and its launcher.

Source: huggingface/transformers, src/transformers/training_args.py (fsdp, fsdp_config, deepspeed, parallelism_config);
huggingface/accelerate, src/accelerate/utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, RootModel

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.problems import Problems
from predictor.core.workload.frameworks import defaults_of
from predictor.core.workload.software import Framework
from predictor.formats import accelerate
from predictor.formats.deepspeed import reader as deepspeed
from predictor.formats.shell.words import as_written
from predictor.formats.trainer.arguments import Arguments

SHIPPED = Path(__file__).parent / "shipped.yaml"
MIB = 2**20
DDP_BUCKET_MIB = 25
HIGHEST = 5  # folders above a file in which a path that it names may start
# Keys of fsdp_config that say how weights are loaded and wrapped, by unit of a layer as they are predicted.
OF_NO_STEP = ("xla", "min_num_params", "version", "activation_checkpointing", "sharding_strategy")
FSDP_KEYS = {"transformer_layer_cls_to_wrap", "limit_all_gathers"}
ZERO = "parallelism.zero_stage"
# transformers recomputes by torch.utils.checkpoint (src/transformers/modeling_utils.py, gradient_checkpointing_enable).
OF_DEEPSPEEDS_OWN = "activation_checkpointing"
OFFLOADED = ("offload_optimizer", "host_threads", "pinned_offload")
OF_STAGE = (
    "overlap_gradient_reduction",
    "overlap_parameter_gather",
    "gradient_reduction",
    "gradient_bucket_elements",
)


@dataclass(slots=True)
class Launch:
    """What is known of a run beside its arguments.

    Attributes:
        base: folder of the file.
        num_gpus: of the run; None where nothing says it.
        num_nodes: of the run.
        accelerate: keys of accelerate's configuration that its launcher was given.
        where: file that these stand in, for messages.
        missing: file of these that is not there; empty: none.
        notes: on what the launcher says.
    """

    base: Path
    num_gpus: int | None = None
    num_nodes: int = 1
    accelerate: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    missing: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Layout:
    """How a run is laid out.

    Attributes:
        parallelism: keys of that section.
        training: keys of that section which the layout's files say.
        framework: whose engine runs.
        derived: keys that follow from the whole configuration.
        sharded: the optimizer has fp32 weights of its own.
    """

    parallelism: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    framework: Framework = Framework.TRANSFORMERS
    derived: dict[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)
    sharded: bool = False


def beside(name: str, base: Path) -> Path | None:
    """Return a file that another names, by a path from its own folder or from one above, or by its name beside it."""
    folders = [base, *base.resolve().parents][:HIGHEST]
    candidates = [*(folder / name for folder in folders), base / Path(name).name]
    return next((file for file in candidates if file.is_file()), None)


class _Shipped(BaseModel):
    """Configurations of DeepSpeed that one tool ships.

    Attributes:
        tool: with its release.
        folder: in front of a name.
        files: by name, their section zero_optimization.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    folder: str
    files: dict[str, dict[str, Any]]


class _AllShipped(RootModel[tuple[_Shipped, ...]]):
    """The tools' configurations."""


def shipped(name: str) -> tuple[str, dict[str, Any]] | None:
    """Return the tool that ships a configuration of DeepSpeed by that path, and its zero_optimization; None: none."""
    content = load_foreign(SHIPPED.read_text(encoding="utf-8"))
    for known in _AllShipped.model_validate(content).root:
        bare = name.removeprefix("./")
        if bare.startswith(known.folder) and (zero := known.files.get(bare.removeprefix(known.folder))) is not None:
            return known.tool, dict(zero)
    return None


def layout_of(
    arguments: Arguments, launch: Launch, precision: str, adapts: bool, widened: bool, problems: Problems
) -> Layout:
    """Return the layout of a run.

    Args:
        arguments: of the run.
        launch: GPUs, and accelerate's configuration.
        precision: that the run computes in.
        adapts: adapters train alone.
        widened: weights are in fp32 beside computing in 16 bits.
        problems: record of what is wrong.
    """
    kind = str(launch.accelerate.get("distributed_type") or "").upper()
    if arguments.has("deepspeed"):
        layout = _deepspeed(arguments, launch, problems)
    elif arguments.value("fsdp"):
        layout = _fsdp(arguments, launch, precision, problems)
    elif launch.missing:
        layout = _unknown(arguments, f"accelerate's configuration is {launch.missing}")
    elif kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        layout = _accelerated(launch, precision, problems, arguments)
    else:
        layout = _replicated(arguments, precision, widened and not adapts)
    if adapts and layout.framework is Framework.TRANSFORMERS:
        layout.parallelism.pop("fp32_parameters", None)  # the base keeps the precision of its files
        arguments.notes[:] = [note for note in arguments.notes if not note.endswith(accelerate.HELD_IN_FP32)]
    _degrees(arguments, launch, layout)
    return layout


def _replicated(arguments: Arguments, precision: str, widened: bool) -> Layout:
    """Return the layout of DDP, which gives way to that of a file beside: accelerate's, or DeepSpeed's.

    Source: torch/nn/parallel/distributed.py, bucket_cap_mb.
    """
    keys = _defaults(Framework.TRANSFORMERS, 0)
    size = 4 if widened or precision == "fp32" else 2
    cap = arguments.value("ddp_bucket_cap_mb")
    megabytes = cap if isinstance(cap, int | float) and not isinstance(cap, bool) and cap > 0 else DDP_BUCKET_MIB
    keys["gradient_bucket_elements"] = int(megabytes * MIB) // size
    keys |= {"fp32_parameters": True, "fp32_gradients": True} if widened else {}

    def where_replicated(value: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda content: value if not _stage(content) else None

    def framework(content: dict[str, Any]) -> str | None:
        said = "gradient_reduction" in content.get("parallelism", {}) and _stage(content)
        return None if said else str(Framework.TRANSFORMERS)

    arguments.note(
        "it names neither deepspeed nor fsdp, so replicas are DDP's; where accelerate starts it, give its "
        "configuration in from as well"
    )
    derived = {f"parallelism.{key}": where_replicated(value) for key, value in keys.items()}
    return Layout(derived={"training.framework": framework, **derived})


def _defaults(framework: Framework, stage: int) -> dict[str, Any]:
    return {"zero_stage": stage} | defaults_of(framework, stage).section("parallelism") | {"zero_stage": stage}


def _degrees(arguments: Arguments, launch: Launch, layout: Layout) -> None:
    """Take in GPUs, nodes and the degrees that split a replica."""
    keys = layout.parallelism
    for key in ("tensor_parallel_size", "context_parallel_size"):
        if arguments.has(key) and (ranks := arguments.whole(key, 1)) > 1:
            keys[key] = ranks
    if arguments.has("expert_parallel_size") and (experts := arguments.whole("expert_parallel_size", 1)) > 1:
        keys |= {"expert_parallel_size": experts, "expert_dispatcher": "deepep"}  # axolotl alone has it
    ranks = keys.get("tensor_parallel_size", 1) * keys.get("context_parallel_size", 1)
    gpus = launch.num_gpus
    if gpus is None:
        keys.pop("data_parallel_size", None)
        arguments.unsaid["parallelism.data_parallel_size"] = f"{arguments.where} says no number of GPUs"
        return
    if gpus % ranks:
        raise ConfigError(f"{arguments.where}: the run has {gpus} GPUs; expected a multiple of its degrees, {ranks}")
    keys["data_parallel_size"] = gpus // ranks
    if launch.num_nodes > 1 and gpus % launch.num_nodes == 0:
        keys["gpus_per_node"] = gpus // launch.num_nodes
    replicas = arguments.whole("dp_replicate_size", 1) if arguments.has("dp_replicate_size") else 1
    if 1 < replicas < keys["data_parallel_size"] and keys.get("zero_stage") == 3:
        keys["zero_group_size"] = gpus // ranks // replicas


def _deepspeed(arguments: Arguments, launch: Launch, problems: Problems) -> Layout:
    """Return the layout that a DeepSpeed configuration says, inside the file or beside it."""
    written = arguments.value("deepspeed")
    if isinstance(written, dict):
        return _with_deepspeed(written, f"{arguments.where}: deepspeed", arguments, problems)
    file = None if arguments.is_open("deepspeed") else beside(str(written), launch.base)
    if file is None and (found := shipped(str(written))) is not None:
        tool, zero = found
        arguments.note(f"{arguments.own('deepspeed')} {written} is not there; it is taken as {tool} has it")
        half = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
        return _with_deepspeed({"zero_optimization": zero, **half}, str(written), arguments, problems)
    if file is None:
        return _missing(arguments)
    content = load_foreign(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise arguments.error("deepspeed", "that file holds no keys and values")
    return _with_deepspeed(content, file.name, arguments, problems)


def _missing(arguments: Arguments) -> Layout:
    """Return the layout of a DeepSpeed configuration that is not there."""
    name = arguments.own("deepspeed")
    shown = as_written(str(arguments.fields.values[name]))
    layout = _unknown(arguments, f"{arguments.fields.prefix}{name} is {shown}")
    del layout.derived["training.framework"]
    layout.framework = Framework.DEEPSPEED
    return layout


def _unknown(arguments: Arguments, which: str) -> Layout:
    """Return the layout that a file says which is not there: its ZeRO stage is asked for, the rest follows from it."""
    arguments.unsaid[ZERO] = (
        f"{arguments.where}: {which}, which is not there: put that file beside this one, or give it in from as well, or"
    )

    def engine(content: dict[str, Any]) -> Framework:
        return Framework.DEEPSPEED if _stage(content) in (1, 2) else Framework.TRANSFORMERS

    def following(key: str) -> Callable[[dict[str, Any]], Any]:
        return lambda content: _defaults(engine(content), _stage(content)).get(key)

    def framework(content: dict[str, Any]) -> str | None:
        return None if "gradient_reduction" in content.get("parallelism", {}) else str(engine(content))

    derived = {f"parallelism.{key}": following(key) for key in OF_STAGE}
    return Layout(derived={"training.framework": framework, **derived}, sharded=True)


def _stage(content: dict[str, Any]) -> int:
    stage = content.get("parallelism", {}).get("zero_stage")
    return stage if isinstance(stage, int) else 0


def _with_deepspeed(content: dict[str, Any], where: str, arguments: Arguments, problems: Problems) -> Layout:
    """Return the layout that DeepSpeed's keys say; batch and precision are the Trainer's."""
    auto = {"train_micro_batch_size_per_gpu": "auto"}
    if content.get(OF_DEEPSPEEDS_OWN):
        arguments.note(
            f"{where}: {OF_DEEPSPEEDS_OWN} is of models that call DeepSpeed's checkpoints; a Trainer's do not"
        )
        content = {key: value for key, value in content.items() if key != OF_DEEPSPEEDS_OWN}
    read = deepspeed.from_mapping({**auto, **content}, where, problems)
    arguments.notes += read.notes
    training = {
        key: value
        for key, value in read.content["training"].items()
        if key not in ("micro_batch_size", "num_micro_batches", "global_batch_size")
    }
    derived = {key: find for key, find in read.derived.items() if key != "training.framework"}
    return Layout(read.content["parallelism"], training, Framework.DEEPSPEED, derived, sharded=True)


def _fsdp(arguments: Arguments, launch: Launch, precision: str, problems: Problems) -> Layout:
    """Return the layout of TrainingArguments' own keys on FSDP, as accelerate calls them."""
    words, held = arguments.listed("fsdp"), _held(arguments, launch)
    strategy = next((word.upper() for word in words if word.upper() in accelerate.STRATEGIES), None)
    section = {key if key.startswith("fsdp_") else f"fsdp_{key}": value for key, value in held.items()}
    section = {key: value for key, value in section.items() if key.removeprefix("fsdp_") not in FSDP_KEYS}
    section = {key: value for key, value in section.items() if not key.startswith("fsdp_xla")}
    if isinstance(section.get("fsdp_mixed_precision_policy"), str):
        del section["fsdp_mixed_precision_policy"]
    if strategy is not None:
        section.setdefault("fsdp_sharding_strategy", strategy)
    if "offload" in words:
        section["fsdp_offload_params"] = True
    if arguments.has("fsdp_version"):
        section["fsdp_version"] = arguments.value("fsdp_version")
    content = {"fsdp_config": section, "distributed_type": "FSDP"}
    return _accelerated(
        Launch(launch.base, launch.num_gpus, launch.num_nodes, content, arguments.where), precision, problems, arguments
    )


def _held(arguments: Arguments, launch: Launch) -> dict[str, Any]:
    """Return fsdp_config: keys and values, or those of the file that it names."""
    written = arguments.value("fsdp_config")
    if not isinstance(written, str):
        return dict(written) if isinstance(written, Mapping) else {}
    file = beside(written, launch.base)
    content = None if file is None else load_foreign(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        arguments.broken("fsdp_config", "that file is not beside this one; put it there, or write its keys here")
        return {}
    return content


def _accelerated(launch: Launch, precision: str, problems: Problems, arguments: Arguments) -> Layout:
    """Return the layout that keys of accelerate say."""
    gpus = launch.num_gpus or launch.accelerate.get("num_processes") or launch.num_nodes
    sizes = {"num_processes": gpus, "num_machines": launch.num_nodes}
    mixed = "no" if precision == "fp32" else precision
    content = {**launch.accelerate, **sizes, "mixed_precision": mixed}
    read = accelerate.from_mapping(content, launch.where, launch.base, problems)
    arguments.notes += read.notes
    kept = ("recompute", "optimizer", "offload_parameters", *OFFLOADED, "gemm_recipe", "framework")
    training = {key: value for key, value in read.content["training"].items() if key in kept}
    derived = {key: find for key, find in read.derived.items() if key != "training.framework"}
    has_engine = str(launch.accelerate.get("distributed_type")).upper() == "DEEPSPEED"
    framework = Framework.DEEPSPEED if has_engine else Framework(training.pop("framework", "transformers"))
    return Layout(read.content["parallelism"], training, framework, derived, sharded=True)
