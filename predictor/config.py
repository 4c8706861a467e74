"""The configuration in its full form: checked completely before anything is computed, and turned into a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from predictor.costs.catalogue import catalogue
from predictor.errors import ConfigError, MissingKeyError, nearest
from predictor.sizes import LARGEST, LARGEST_RUN_GPUS, LARGEST_SLOTS, both_names, must_divide
from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.layout import Layout
from predictor.workloads.partition import METHODS, split_layers
from predictor.workloads.run import Recompute, TrainingRun
from predictor.workloads.transformer import Attention, Normalization, Transformer


def _whole_number(value: object, info: ValidationInfo) -> object:
    """Refuse what pydantic would turn into a whole number although nobody meant one, and what nobody could mean."""
    if isinstance(value, bool | str):
        raise ValueError(f"expected a whole number, not {value!r}")
    largest = LARGEST.get(info.field_name or "")
    if largest is not None and isinstance(value, int | float) and value > largest:
        raise ValueError(f"more than {largest:,} is taken for a slip")
    return value


def _split(value: object) -> object:
    """Refuse a split that is neither a list nor the name of a method, before pydantic explains both."""
    if isinstance(value, list | tuple) or value in METHODS:
        return value
    raise ValueError(f"expected a list of layers per stage, or {' or '.join(METHODS)}")


# What the first and the last stage run beside their layers.
EDGE_OPERATORS = ("embedding", "lm_head", "cross_entropy")

Count = Annotated[int, BeforeValidator(_whole_number), Field(gt=0)]
Syncs = Annotated[int, BeforeValidator(_whole_number), Field(ge=0)]
Switch = Annotated[bool, Field(strict=True)]
Probability = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]


class Section(BaseModel):
    """Base of every part of a configuration: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(Section):
    """The model."""

    num_layers: Count = Field(description="transformer layers")
    hidden_size: Count = Field(description="width of the residual stream, elements")
    num_attention_heads: Count = Field(description="query heads")
    sequence_length: Count = Field(description="tokens per sample")
    ffn_hidden_size: Count | None = Field(default=None, description="inner width of the FFN; 4 × hidden_size if absent")
    vocab_size: Count = Field(default=50257, description="tokens of the vocabulary, before padding")
    normalization: Normalization = Field(
        default=Normalization.RMS_NORM, description="norm of a layer and of the output"
    )
    attention: Attention = Field(default=Attention.FLASH, description="kernels that compute attention")
    causal: Switch = Field(default=True, description="a token attends to earlier ones only")
    rotary_fraction: float = Field(
        default=1.0, strict=True, ge=0.0, le=1.0, description="rotated share of a head; 0: learned positions"
    )
    parallel_residual: Switch = Field(default=False, description="attention and FFN side by side (GPT-J)")
    biases: Switch = Field(default=False, description="linear layers have biases")
    attention_dropout: Probability = Field(default=0.0, description="probability")
    hidden_dropout: Probability = Field(default=0.0, description="probability")
    fused_side_kernels: Switch = Field(default=False, description="bias, dropout and residual addition in one kernel")
    tied_embeddings: Switch = Field(default=False, description="embedding and output projection share weights")
    layer_operators: tuple[str, ...] | None = Field(
        default=None, description="operators of a layer, instead of the usual"
    )
    forward_all_reduces: Syncs | None = Field(default=None, description="tensor-parallel all-reduces per layer forward")
    backward_all_reduces: Syncs | None = Field(default=None, description="the same backward")


class ParallelismSection(Section):
    """How the model is laid out over GPUs."""

    tensor_parallel_size: Count = Field(default=1, description="ranks that split every layer")
    pipeline_parallel_size: Count = Field(default=1, description="stages")
    data_parallel_size: Count = Field(default=1, description="replicas")
    gpus_per_node: Count | None = Field(default=None, description="GPUs used per node; the system's if absent")
    intra_node: Literal["measured", "switch"] = Field(
        default="measured", description="wiring of a node's GPUs: as on the measured system, or all behind a switch"
    )
    layers_per_stage: Annotated[tuple[Count, ...] | Literal["uniform", "gpt_neox"], BeforeValidator(_split)] = Field(
        default="uniform", description="a list, or how a framework splits"
    )
    schedule: Literal["1f1b", "all_forward_all_backward"] = Field(default="1f1b", description="pipeline schedule")
    blocking_transfers: Switch = Field(default=True, description="neighbouring stages both wait for a message")
    zero_stage: Annotated[Literal[0, 1], BeforeValidator(_whole_number)] = Field(
        default=1, description="1: optimizer states sharded over replicas"
    )
    gradient_bucket_elements: Count = Field(default=500_000_000, description="gradient elements per reduction")
    overlap_gradient_reduction: Switch = Field(default=False, description="reduce during the last backward pass")


class TrainingSection(Section):
    """One step."""

    micro_batch_size: Count = Field(description="samples per micro-batch and replica")
    num_micro_batches: Count | None = Field(default=None, description="micro-batches per step and replica")
    global_batch_size: Count | None = Field(default=None, description="samples per step; or give num_micro_batches")
    precision: Literal["fp16", "bf16", "fp32"] = Field(default="fp16", description="element type of activations")
    recompute: Recompute = Field(default=Recompute.NONE, description="activation recomputation")
    partition_activations: Switch = Field(default=False, description="checkpoints split over tensor-parallel ranks")
    synchronize_each_layer: Switch = Field(default=False, description="host waits for the device after every layer")


class RunConfig(Section):
    """A configuration file in its full form."""

    system: str = Field(description="published system by name, or the path of its folder")
    gpu: str | None = Field(default=None, description="its GPU; checked if given")
    model: ModelSection
    parallelism: ParallelismSection = ParallelismSection()
    training: TrainingSection


def _known_keys(location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that are legal where a validation error occurred."""
    model: type[BaseModel] = RunConfig
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            break
        model = field.annotation
    return list(model.model_fields)


def _shown(value: object) -> str:
    """Return a value as its file says it, without the contents of what has many."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"{value!r}"


def explain(error: ValidationError, is_short: bool = False) -> ConfigError | MissingKeyError:
    """Turn pydantic's first complaint into one line with the way out.

    Args:
        error: what pydantic found.
        is_short: the user wrote the short form, which has no sections.
    """
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"] if not str(part).startswith(("tuple[", "literal["))]
    depth = max((i for i, part in enumerate(parts) if not part.isdigit()), default=0)
    section = "" if is_short else "".join(f"{part}." for part in parts[:depth])
    where = section + both_names(parts[depth]) + "".join(f" [{part}]" for part in parts[depth + 1 :])
    known = _known_keys(first["loc"][:-1])
    if first["type"] == "missing":
        return MissingKeyError(f"{where} is missing; it is required")
    if first["type"] == "extra_forbidden":
        return ConfigError(f"{where} is not a known key.{nearest(parts[depth], known)} Known here: {', '.join(known)}")
    shown = _shown(first["input"])
    if first["type"] == "model_type":
        return ConfigError(f"{where} is {shown}; it needs keys: {', '.join(_known_keys(first['loc']))}")
    message = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{where} is {shown}: {message[0].lower()}{message[1:]}")


def validate(content: dict[str, Any], is_short: bool = False) -> RunConfig:
    """Check a full-form configuration; ``is_short`` where it was expanded from a short one.

    Raises:
        MissingKeyError: a required key is absent.
        ConfigError: a key is unknown or a value is not allowed.
    """
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise explain(error, is_short) from None


def operators_of_a_layer() -> list[str]:
    """Return the operators that a layer can be made of."""
    return [name for name, one in catalogue().items() if one.shape is not None and name not in EDGE_OPERATORS]


def _check_operators(names: tuple[str, ...] | None) -> None:
    if names is None:
        return
    usable = operators_of_a_layer()
    if not names:
        raise ConfigError(
            "model.layer_operators is []; list the operators of a layer, or leave it out for the usual ones. "
            f"Known: {', '.join(usable)}"
        )
    for name in names:
        if name not in usable:
            raise ConfigError(
                f"model.layer_operators names {name!r}, not an operator of a layer.{nearest(name, usable)} "
                f"Known: {', '.join(usable)}"
            )


def _micro_batches(config: RunConfig) -> int:
    """Return micro-batches per step from whichever of the two numbers is given."""
    training, dp = config.training, config.parallelism.data_parallel_size
    if (training.num_micro_batches is None) == (training.global_batch_size is None):
        raise ConfigError("training needs exactly one of num_micro_batches and global_batch_size")
    if training.num_micro_batches is not None:
        return training.num_micro_batches
    assert training.global_batch_size is not None
    per_round = training.micro_batch_size * dp
    if training.global_batch_size % per_round:
        raise ConfigError(
            f"global_batch_size is {training.global_batch_size}; it must be a multiple of micro_batch_size × "
            f"data_parallel_size, {per_round}"
        )
    return training.global_batch_size // per_round


def _check_divisions(model: ModelSection, tensor_parallel_size: int, ffn_hidden_size: int) -> None:
    must_divide("num_attention_heads", model.num_attention_heads, "hidden_size", model.hidden_size)
    must_divide("tensor_parallel_size", tensor_parallel_size, "num_attention_heads", model.num_attention_heads)
    must_divide("tensor_parallel_size", tensor_parallel_size, "ffn_hidden_size", ffn_hidden_size)


def _check_scale(gpus: int, stages: int, num_micro_batches: int) -> None:
    """Refuse what single sizes allow and their product does not: nobody means it, and its replay would take minutes."""
    if gpus > LARGEST_RUN_GPUS:
        raise ConfigError(
            f"pipeline (pp) × tensor (mp) × data (dp) parallel sizes make {gpus:,} GPUs; more than "
            f"{LARGEST_RUN_GPUS:,} is taken for a slip"
        )
    if stages * num_micro_batches > LARGEST_SLOTS:
        raise ConfigError(
            f"pipeline_parallel_size (pp) × num_micro_batches (steps_per_update) is {stages * num_micro_batches:,}; "
            f"more than {LARGEST_SLOTS:,} is taken for a slip"
        )


def to_run(config: RunConfig, gpus_per_node: int) -> TrainingRun:
    """Turn a checked configuration into a run.

    Args:
        config: the configuration.
        gpus_per_node: of the system, used where the configuration does not say.

    Raises:
        ConfigError: numbers contradict each other.
    """
    model, parallelism, training = config.model, config.parallelism, config.training
    tp, pp = parallelism.tensor_parallel_size, parallelism.pipeline_parallel_size
    used = parallelism.gpus_per_node or gpus_per_node
    switched = parallelism.intra_node == "switch"
    if used > gpus_per_node and not switched:
        raise ConfigError(f"gpus_per_node is {used}; {config.system} has {gpus_per_node}")
    ffn = model.ffn_hidden_size or 4 * model.hidden_size
    _check_divisions(model, tp, ffn)
    _check_operators(model.layer_operators)
    split = parallelism.layers_per_stage
    layers = split_layers(split if isinstance(split, str) else list(split), model.num_layers, pp)
    num_micro_batches = _micro_batches(config)
    _check_scale(tp * pp * parallelism.data_parallel_size, pp, num_micro_batches)
    assert parallelism.schedule in SCHEDULES
    switches = model.model_dump(exclude={"ffn_hidden_size"})
    return TrainingRun(
        model=Transformer(ffn_hidden_size=ffn, **switches),
        layout=Layout(tp, pp, parallelism.data_parallel_size, used, gpus_per_node if switched else None),
        layers_per_stage=tuple(layers),
        micro_batch_size=training.micro_batch_size,
        num_micro_batches=num_micro_batches,
        precision=training.precision,
        recompute=training.recompute,
        schedule=parallelism.schedule,
        zero_stage=parallelism.zero_stage,
        gradient_bucket_elements=parallelism.gradient_bucket_elements,
        overlap_gradient_reduction=parallelism.overlap_gradient_reduction,
        blocking_transfers=parallelism.blocking_transfers,
        partition_activations=training.partition_activations,
        synchronize_each_layer=training.synchronize_each_layer,
    )
