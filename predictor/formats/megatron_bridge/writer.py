"""Write a configuration as a recipe of Megatron-Bridge: a Python function that returns a ConfigContainer.

Its keys are the arguments of Megatron-LM under other names, so the rules of Megatron-core (releases.py) hold for it.
Source of names: NVIDIA-NeMo/Megatron-Bridge 0.3.1, src/megatron/bridge/recipes and training/config.py, which runs on
Megatron-core 0.15 and 0.16.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.words import counted
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.presets import find_preset, preset_names
from predictor.core.schema.sections import RunConfig
from predictor.core.workload.switches import Activation, Attention, Biases, Normalization
from predictor.formats.hub_models import preset_of
from predictor.formats.megatron.experts import layer_pattern
from predictor.formats.megatron.releases import Arguments, arguments, check, release
from predictor.formats.megatron.writer import arguments_of
from predictor.formats.megatron.written_layers import is_hybrid
from predictor.formats.megatron_bridge.options import ON, PRECISIONS, RENAMED

CORES = {"0.3": "0.16"}  # Megatron-core of a version
# Models that AutoBridge converts: register_bridge of src/megatron/bridge/models.
BRIDGED = re.compile(
    r"(?:huggyllama/llama|meta-llama/|mistralai/Mistral-|Qwen/Qwen(?:2\.5|3)-|google/gemma-2?-?\d+b|deepseek-ai/DeepSeek-"
    r"|openai/gpt-oss-|zai-org/GLM-4\.5)",
)
# Keys of a model that its preset does not settle, as a recipe says them.
OF_KERNELS = frozenset(
    {"sequence_length", "normalization", "attention", "fused_rope", "fused_side_kernels", "loss", "num_mtp_layers"}
)
# Sections of arguments; the others are of the model.
SECTIONS = {
    "train": "micro-batch-size global-batch-size",
    "ddp": (
        "use-distributed-optimizer overlap-grad-reduce overlap-param-gather ddp-bucket-size "
        "num-distributed-optimizer-instances"
    ),
    "optimizer": (
        "optimizer-cpu-offload optimizer-offload-fraction use-precision-aware-optimizer overlap-cpu-optimizer-d2h-h2d"
    ),
    "mixed_precision": (
        "fp8-format fp8-recipe fp8-param-gather fp4-format fp4-recipe first-last-layers-bf16 "
        "num-layers-at-start-in-bf16 num-layers-at-end-in-bf16 reuse-grad-buf-for-mxfp8-param-ag"
    ),
    "comm_overlap": "tp-comm-overlap overlap-moe-expert-parallel-comm",
    "dist": "use-tp-pp-dp-mapping",
}
SECTION_OF = {argument: section for section, names in SECTIONS.items() for argument in names.split()}
KEY_OF = {argument: key for key, argument in RENAMED.items()}
KEY_OF |= {argument: key for key, switches in ON.items() for argument in switches}
KEY_OF |= {
    "ddp-bucket-size": "ddp.bucket_size",
    "enable-experimental": "dist.enable_megatron_core_experimental",
    "no-check-for-nan-in-loss-and-grad": "rerun_state_machine.check_for_nan_in_loss",
    "te-rng-tracker": "rng.te_rng_tracker",
}
# Arguments that no key stands for: other keys, the kind of the model or its defaults say the same.
ELSEWHERE = frozenset(
    {"bf16", "fp16", "grad-reduce-in-bf16", "accumulate-allreduce-grads-in-fp32", "transformer-impl"}
    | {"attention-backend", "group-query-attention", "max-position-embeddings", "swiglu", "quick-geglu", "squared-relu"}
    | {"vocab-size", "cross-entropy-loss-fusion", "no-bias-swiglu-fusion", "no-bias-gelu-fusion"}
)
CHUNKS = "num-virtual-stages-per-pipeline-rank"
REUSED = "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"
APART = ("mixed_precision", "optimizer", "comm_overlap")
LISTS = ("recompute-modules", "cuda-graph-scope", "offload-modules")
PATTERNS = ("moe-layer-freq", "window-attn-skip-freq", "no-rope-freq")
FUSIONS = [key for key in ON if key.endswith("_fusion") and "softmax" not in key]  # attention has none here
OFF = {"rerun_state_machine.check_for_nan_in_loss"} | ON.keys()  # said by False
FUNCTIONS = {
    Activation.SWIGLU: "silu",
    Activation.GEGLU: "quick_gelu",
    Activation.SQUARED_RELU: "squared_relu",
}
RECIPE = '''\
"""{title}

Start it on every node with
CUDA_DEVICE_MAX_CONNECTIONS=1 {environment}torchrun --nproc-per-node {per_node} --nnodes {nodes} FILE
Yours to set, as no prediction depends on them: cfg.dataset, the tokenizer, cfg.optimizer.lr and cfg.train.train_iters.
"""

{imports}


def pretrain_{num_gpus}gpu_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = {model}
{settings}
    return cfg


if __name__ == "__main__":
    pretrain(pretrain_{num_gpus}gpu_config(), forward_step)
'''
IMPORTS = {
    "AutoBridge": "from megatron.bridge import AutoBridge",
    "GPTModelProvider": "from megatron.bridge.models.gpt_provider import GPTModelProvider",
    "MLAModelProvider": "from megatron.bridge.models.mla_provider import MLAModelProvider",
    "_pretrain_common": "from megatron.bridge.recipes.common import _pretrain_common",
    "CommOverlapConfig": "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
    "ConfigContainer": "from megatron.bridge.training.config import ConfigContainer",
    "forward_step": "from megatron.bridge.training.gpt_step import forward_step",
    "get_mixed_precision_config": "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
    "pretrain": "from megatron.bridge.training.pretrain import pretrain",
    "squared_relu": "from megatron.core.activations import squared_relu",
    "quick_gelu": "from megatron.core.fusions.fused_bias_geglu import quick_gelu",
    "silu": "from torch.nn.functional import silu",
}


def write(config: RunConfig, num_gpus: int, gpus_per_node: int, version: str) -> str:
    """Return the recipe.

    Args:
        config: a checked configuration.
        num_gpus: of the run, which the recipe's name says.
        gpus_per_node: that it uses of a node.
        version: of Megatron-Bridge, such as 0.3.

    Raises:
        ConfigError: Megatron-Bridge has no keys for a part of it, or Megatron-core refuses some of them together.
    """
    series = release(CORES[version])
    _refuse(config)
    model, parallel, training = arguments_of(config, series)
    check([*model, *parallel, *training], series)
    sizes, layout = arguments(model), arguments([*parallel, *training])
    hub = hub_name(config.model)
    built, settings = _of_hub(hub, config.model, sizes) if hub is not None else _of_sizes(config.model, sizes)
    settings |= _settings(layout, config.model) | _switches(config.model, {**sizes, **layout})
    settings |= _precision(config, layout) | _optimizer(layout)
    if "--pipeline-model-parallel-layout" in layout and config.parallelism.virtual_pipeline_parallel_size > 1:
        settings[_key(CHUNKS)] = str(config.parallelism.virtual_pipeline_parallel_size)
    lines = [f"    cfg.{key} = {value}" for key, value in settings.items()]
    text = "\n".join([built, *lines, "_pretrain_common ConfigContainer forward_step pretrain"])
    per_node = min(num_gpus, gpus_per_node)
    return RECIPE.format(
        title=f"Megatron-Bridge {version} on {counted(num_gpus, 'GPU')} of {config.system}, as searched.",
        per_node=per_node,
        nodes=num_gpus // per_node,
        imports="\n".join(line for name, line in IMPORTS.items() if re.search(rf"\b{name}\b", text)),
        num_gpus=num_gpus,
        model=built,
        settings="\n".join(lines),
        # training/config.py: from Transformer Engine 2.10 on weights would be offloaded too.
        environment="NVTE_CPU_OFFLOAD_V1=1 " if config.training.offload_modules else "",
    )


def _refuse(config: RunConfig) -> None:
    """Refuse what a recipe is not written for.

    Raises:
        ConfigError: there is such a thing.
    """
    model, training, parallel = config.model, config.training, config.parallelism
    is_whole = parallel.pipeline_parallel_size > 1 and parallel.virtual_pipeline_parallel_size == 1
    refused = {
        f"model.attention is {model.attention}; Megatron-Bridge's models have Transformer Engine's, flash": (
            model.attention != Attention.FLASH
        ),
        f"model.normalization is {model.normalization}; Megatron-Bridge's models have fused_rms_norm or layer_norm": (
            model.normalization is Normalization.RMS_NORM
        ),
        "model.layer_types names layers without attention or without FFN; Megatron-Bridge's hybrids are not written": (
            is_hybrid(model)
        ),
        f"training.precision is {training.precision}; recipes of Megatron-Bridge are written in bf16 and fp16": (
            training.precision not in ("bf16", "fp16")
        ),
        # training/comm_overlap.py, _get_model_comm_overlap_cfgs
        "parallelism.overlap_expert_parallel is true; in a pipeline Megatron-Bridge has it beside "
        "virtual_pipeline_parallel_size above 1 only": parallel.overlap_expert_parallel and is_whole,
    }
    for line, is_so in refused.items():
        if is_so:
            raise ConfigError(line)


def hub_name(model: ModelSection) -> str | None:
    """Return the name on Hugging Face's hub of a model that AutoBridge converts; None where no preset is the same."""
    own = _shape(model)
    for name in preset_names():
        known = find_preset(name)
        named: list[str] = re.findall(r"[\w-]+/[\w.-]*\w", known.source)
        hub = next((each for each in named if BRIDGED.match(each) and preset_of(each) == name), None)
        if hub is not None and known.model["hidden_size"] == model.hidden_size:
            sized = {**known.model, "sequence_length": model.sequence_length}
            if _shape(ModelSection.model_validate(sized)) == own:
                return hub
    return None


def _shape(model: ModelSection) -> dict[str, Any]:
    """Return what a preset settles of a model."""
    is_rms = model.normalization is not Normalization.LAYER_NORM
    return {**model.model_dump(exclude=set(OF_KERNELS)), "is_rms": is_rms}


def _of_hub(hub: str, model: ModelSection, sizes: Arguments) -> tuple[str, dict[str, str]]:
    """Return a model of the hub, and the keys that its preset does not settle."""
    keys = {"seq_length": model.sequence_length, "mtp_num_layers": model.num_mtp_layers or None}
    keys |= {} if model.moe is None else {"num_moe_experts": model.moe.num_experts}
    built = f'AutoBridge.from_hf_pretrained("{hub}").to_megatron_provider(load_weights=False)'
    found = {f"model.{key}": repr(value) for key, value in keys.items()} | _data(model)
    if implementation := sizes.get("--cross-entropy-fusion-impl"):
        found["model.cross_entropy_fusion_impl"] = f'"{implementation[0]}"'
    return built, found


def _of_sizes(model: ModelSection, sizes: Arguments) -> tuple[str, dict[str, str]]:
    """Return a model of its own sizes; the tokenizer settles its vocabulary, which is padded then."""
    provider, fields = "GPTModelProvider", _settings(sizes, model)
    if model.latent_attention is not None:
        provider, fields = "MLAModelProvider", {"model.q_lora_rank": "None", **fields}
    if model.activation in FUNCTIONS:
        fields["model.activation_func"] = FUNCTIONS[model.activation]
        fields["model.gated_linear_unit"] = str(model.activation.gated)
    keys = {key.removeprefix("model."): value for key, value in fields.items() if key.startswith("model.")}
    rest = {key: value for key, value in fields.items() if not key.startswith("model.")}
    lines = "".join(f"        {key}={value},\n" for key, value in keys.items())
    return f"{provider}(\n{lines}    )", rest | _data(model)


def _data(model: ModelSection) -> dict[str, str]:
    """Return data and tokenizer of a first start: mock data, and a tokenizer of as many tokens as the model has."""
    return {
        "dataset.seq_length": str(model.sequence_length),
        "tokenizer.tokenizer_type": '"NullTokenizer"',
        "tokenizer.vocab_size": f"{model.vocab_size - 1}  # an end of document comes on top",
    }


def _key(argument: str) -> str:
    """Return the key of a recipe that an argument of Megatron-LM is."""
    return KEY_OF.get(argument, f"{SECTION_OF.get(argument, 'model')}.{argument.replace('-', '_')}")


def _settings(given: Arguments, model: ModelSection) -> dict[str, str]:
    """Return arguments as keys of a recipe with their values, without those that ``write`` adds section by section."""
    names = [name.removeprefix("--") for name in given]
    apart = (*ELSEWHERE, *(name for section in APART for name in SECTIONS[section].split()))
    keys = {name: _key(name) for name in names if name not in apart and _key(name) not in FUSIONS}
    return {key: _value(name, given[f"--{name}"], model) for name, key in keys.items()}


def _value(argument: str, values: list[str], model: ModelSection) -> str:
    """Return the value of an argument as Python has it."""
    text = " ".join(values)
    if not values:
        return str(_key(argument) not in OFF)
    if argument in PATTERNS:
        runs = [(kind, len(list(run))) for kind, run in groupby(layer_pattern(text, model.num_layers) or [])]
        return " + ".join(f"[{kind}] * {count}" for kind, count in runs)
    if argument in LISTS:
        return repr(values)
    if argument == "window-size":
        return f"({text.replace(',', ', ')})"
    return text if re.fullmatch(r"\d+(?:\.\d+)?", text) else f'"{text}"'


def _switches(model: ModelSection, given: Arguments) -> dict[str, str]:
    """Return switches whose defaults depend on the provider: fusions, the distributed optimizer and its overlap."""
    found = {key: str(not any(f"--{argument}" in given for argument in ON[key])) for key in FUSIONS}
    is_plain = model.activation is Activation.GELU and model.biases is not Biases.ALL
    if is_plain or model.activation is Activation.SQUARED_RELU:  # Megatron-core has no such kernel
        found.pop("model.bias_activation_fusion")
    if not model.rotary_fraction:
        found.pop("model.apply_rope_fusion")
    if "--no-check-for-nan-in-loss-and-grad" in given:
        found["ddp.check_for_nan_in_grad"] = "False"
    found["model.cross_entropy_loss_fusion"] = str("--cross-entropy-loss-fusion" in given)
    for name in ("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather"):
        found[f"ddp.{name.replace('-', '_')}"] = str(f"--{name}" in given)
    return found


def _precision(config: RunConfig, given: Arguments) -> dict[str, str]:
    """Return the mixed precision by its name, and what differs from it."""
    said = {_key(name): (name, given.get(f"--{name}")) for name in SECTIONS["mixed_precision"].split()}
    recipe = next((values[0] for key, (_, values) in said.items() if values and key.endswith("_recipe")), None)
    kind = next(name for name, own in PRECISIONS.items() if own.get("fp8_recipe", own.get("fp4_recipe")) == recipe)
    found = {"mixed_precision": f'get_mixed_precision_config("{config.training.precision}_{kind}")'}
    found["mixed_precision.grad_reduce_in_fp32"] = str(config.parallelism.fp32_gradients)
    based = {f"mixed_precision.{name}" for name in PRECISIONS[kind]} | {REUSED} if recipe else set()
    for key, (name, values) in said.items():
        if values is not None:
            found[key] = _value(name, values, config.model)
        elif key in based:
            found[key] = "0" if key.endswith("_in_bf16") else "False"
    return found


def _optimizer(given: Arguments) -> dict[str, str]:
    """Return the keys of the optimizer, and of traffic beside computing, which repeat those of the reduction."""
    names = [name for name in SECTIONS["optimizer"].split() if f"--{name}" in given]
    found = {_key(name): "".join(given[f"--{name}"]) or "True" for name in names}
    found["optimizer.use_distributed_optimizer"] = str("--use-distributed-optimizer" in given)
    overlaps = SECTIONS["comm_overlap"].split()
    if not any(f"--{name}" in given for name in overlaps):
        return found
    overlaps += ["overlap-grad-reduce", "overlap-param-gather"]
    fields = [f"{name.replace('-', '_')}={f'--{name}' in given}" for name in overlaps]
    fields += [f"bucket_size={size}" for size in given.get("--ddp-bucket-size", [])]
    lines = "".join(f"        {field},\n" for field in fields)
    return found | {"comm_overlap": f"CommOverlapConfig(\n{lines}    )"}
