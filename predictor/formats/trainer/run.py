"""A run of Hugging Face's Trainer: every tool's arguments pass here on their way to a configuration.

Source of names and defaults: huggingface/transformers, src/transformers/training_args.py; huggingface/trl,
trl/trainer/sft_config.py, model_config.py and base_config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.software import Framework
from predictor.formats.hub_models import shape_of
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.trainer.adapters import lora_of
from predictor.formats.trainer.arguments import Arguments
from predictor.formats.trainer.kernels import attention_of, kernels_of
from predictor.formats.trainer.layout import Launch, Layout, layout_of
from predictor.formats.trainer.models import model_of
from predictor.formats.trainer.precision import optimizer_of, precision_of
from predictor.formats.trainer.preference import objective_keys

BATCH = 8  # training_args.py, per_device_train_batch_size
# Arguments that say nothing where another one is off.
BESIDE_OTHERS = (
    "tf32",
    "dp_shard_size",
    "dp_replicate_size",
    "fsdp_version",
    "gradient_checkpointing_kwargs",
    "activation_checkpointing_kwargs",
    "lora_r",
    "lora_dropout",
    "lora_target_modules",
    "lora_target_parameters",
    "lora_modules_to_save",
    "use_dora",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "load_in_4bit",
    "load_in_8bit",
    "packing",
    "pads_to_length",
    "ddp_bucket_cap_mb",
    "torch_dtype",
    "dtype",
    "fsdp",
    "fsdp_config",
    "config_name",
    "use_liger",
    "liger_kernel_config",
)
IMAGES = ("processor_type", "image_size", "image_max_pixels", "freeze_vision_tower", "image_folder")
KEYS = "trainer"  # of TRL and the Trainer's own scripts; other tools set the storage of four bits themselves
REENTRANT = "use_reentrant"
IN_STREAM = "legacy"  # of activation_offloading, as axolotl calls it: copies in the stream that computes


def read_run(arguments: Arguments, launch: Launch, name: str, problems: Problems, objective: str | None = None) -> Read:
    """Return the configuration that the arguments of a run stand for.

    Args:
        arguments: of the run.
        launch: what is known beside them.
        name: of the format.
        problems: record of what is wrong.
        objective: of preference learning; None: supervised fine-tuning or pre-training.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each.
    """
    nothing = dict[str, Any]
    arguments.notes += launch.notes
    has_images = any(arguments.has(key) for key in IMAGES)
    for key in IMAGES:
        arguments.value(key)
    model = problems.part(nothing(), model_of, arguments, launch.base, has_images)
    length = arguments.size("max_length", "model.sequence_length", None)
    if length is None:  # a preset's own is that of another training
        model = {key: size for key, size in shape_of(model).items() if key != "sequence_length"}
    else:
        model["sequence_length"] = length
    adapts = arguments.switch("use_peft")
    training = _batch(arguments)
    mixed = launch.accelerate.get("mixed_precision")
    precision, weights_in_fp32 = problems.part((nothing(), False), precision_of, arguments, mixed)
    how = (precision.get("precision", "bf16"), adapts, weights_in_fp32, problems)
    layout = problems.part(Layout(), layout_of, arguments, launch, *how)
    layout.training.pop("precision", None)
    training |= layout.training | precision | _recompute(arguments) | _offloading(arguments)
    if (recipe := arguments.value("gemm_recipe")) is not None:
        training["gemm_recipe"] = recipe
    if adapts:
        if weights_in_fp32 and layout.framework is Framework.TRANSFORMERS and not arguments.switch("load_in_4bit"):
            arguments.note("the base is predicted in 16 bits; in fp32 it takes twice the memory, and casts")
        training["lora"] = problems.part(nothing(), lora_of, arguments, model)
        if layout.parallelism.get("zero_stage") == 3 and arguments.dialect.keys == KEYS:
            _note_storage(arguments, training["lora"])
    else:
        problems.part(nothing(), _unadapted, arguments)
    training |= optimizer_of(arguments, adapts, weights_in_fp32, layout.sharded)
    model |= attention_of(arguments, training)
    if layout.parallelism.get("tensor_parallel_size", 1) > 1:  # the loss of whole logits knows no ranks that split them
        model.pop("loss", None)
        arguments.note("tensor-parallel ranks are predicted to split the loss; transformers gathers the logits")
    replaced = kernels_of(arguments, model, training)
    if objective is not None:
        objective_keys(arguments, objective, adapts, training, model)
    _samples(arguments)
    if "training.framework" not in layout.derived:
        training["framework"] = str(layout.framework)
    derived = layout.derived | replaced | _budget(arguments)
    arguments.pass_over(BESIDE_OTHERS)
    notes = rest(known_keys(arguments.dialect.keys), arguments.dialect.tool, [arguments.fields], arguments.dialect.read)
    problems.check()
    if arguments.taken:
        shown = ", ".join(f"{key} {value}" for key, value in arguments.taken.items())
        arguments.note(f"not said, so as {arguments.dialect.tool} has it: {shown}")
    content = {"model": model, "parallelism": layout.parallelism, "training": training}
    return Read(content, (*dict.fromkeys(arguments.notes), *notes), name, arguments.unsaid, derived)


def _batch(arguments: Arguments) -> dict[str, Any]:
    """Return the batch of a process; tools count no samples over all of them."""
    keys: dict[str, Any] = {}
    micro = arguments.size("per_device_train_batch_size", "training.micro_batch_size", BATCH)
    keys |= {} if micro is None else {"micro_batch_size": micro}
    if arguments.has("global_batch_size"):
        keys["global_batch_size"] = arguments.whole("global_batch_size", 1)
    else:
        rounds = arguments.size("gradient_accumulation_steps", "training.num_micro_batches", 1)
        keys |= {} if rounds is None else {"num_micro_batches": rounds}
    if arguments.switch("auto_find_batch_size"):
        arguments.note("auto_find_batch_size is on; the batch is predicted as it is written, and not halved")
    return keys


def _recompute(arguments: Arguments) -> dict[str, Any]:
    """Return the keys of ``training`` on recomputation."""
    if arguments.is_open("gradient_checkpointing"):
        arguments.unsaid["training.recompute"] = f"{arguments.where}: gradient_checkpointing comes from outside"
        arguments.pass_over(("gradient_checkpointing",))
        return {}
    written = arguments.value("gradient_checkpointing", arguments.value("activation_checkpointing"))
    kwargs = arguments.value("gradient_checkpointing_kwargs", arguments.value("activation_checkpointing_kwargs"))
    if not any(arguments.has(key) for key in ("gradient_checkpointing", "activation_checkpointing")):
        arguments.taken["gradient_checkpointing"] = bool(written)
    if not arguments.switch("gradient_checkpointing") and not arguments.switch("activation_checkpointing"):
        return {}
    keys: dict[str, Any] = {"recompute": "full"}
    default = arguments.dialect.defaults.get(REENTRANT, False)  # modeling_utils.py of transformers 5; true before
    stays = kwargs.get(REENTRANT, default) if isinstance(kwargs, dict) else default
    if isinstance(kwargs, str) and "false" in kwargs.lower():
        stays = False
    return keys | ({} if stays else {"recompute_stops_early": True})


def _offloading(arguments: Arguments) -> dict[str, Any]:
    """Return the keys of ``training`` on activations in host memory.

    Source: huggingface/trl, trl/models/activation_offloading.py.
    """
    if arguments.value("activation_offloading") != IN_STREAM:
        return {"offload_activations": True} if arguments.switch("activation_offloading") else {}
    return {"offload_activations": True, "overlap_activation_offload": False}


def _note_storage(arguments: Arguments, lora: dict[str, Any]) -> None:
    """Note what a sharded base in four bits needs, where a run leaves it to bitsandbytes' bytes."""
    if lora.get("quantized_base") and not arguments.has("bnb_4bit_quant_storage"):
        arguments.note(
            "a base in four bits is shared out where bnb_4bit_quant_storage is the type of its other weights"
        )


def _unadapted(arguments: Arguments) -> dict[str, Any]:
    """Check that a run without adapters trains weights that can be trained."""
    for key in ("load_in_4bit", "load_in_8bit"):
        if arguments.switch(key):
            raise arguments.error(key, "quantised weights are trained with adapters alone; name an adapter")
    return {}


def _samples(arguments: Arguments) -> None:
    """Note what a file leaves open on the length of samples."""
    if arguments.switch("fills_sequences"):
        return  # texts one behind another, of which attention sees all
    if arguments.switch("packing"):
        arguments.note(
            "samples are packed; attention is predicted over whole sequences: set training.document_tokens to the mean "
            "of a document"
        )
    elif not arguments.switch("pads_to_length"):
        arguments.note("samples are predicted as long as the longest one allowed; set training.mean_sequence_length")


def _budget(arguments: Arguments) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Return the tokens of max_steps steps, which follow from the whole configuration."""
    steps = arguments.value("max_steps")
    if isinstance(steps, str) and steps.isdigit():
        steps = int(steps)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        return {}

    def tokens(content: dict[str, Any]) -> int | None:
        training, model = content.get("training", {}), content.get("model", {})
        samples = training.get("global_batch_size")
        if samples is None:
            factors = (
                training.get("micro_batch_size"),
                training.get("num_micro_batches"),
                content.get("parallelism", {}).get("data_parallel_size"),
            )
            if not all(isinstance(factor, int) for factor in factors):
                return None
            samples = factors[0] * factors[1] * factors[2]
        length = model.get("sequence_length")
        return steps * samples * length if isinstance(length, int) else None

    return {"budget.train_tokens": tokens}


def refuse_task(arguments: Arguments, key: str, what: str) -> ConfigError:
    """Return the error that a run does not train a language model on its samples alone."""
    return arguments.error(
        key,
        f"{what} is not modelled; supervised fine-tuning and continued pre-training are: remove it to predict those",
    )
