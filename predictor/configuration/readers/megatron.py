"""Read the command line of a Megatron-LM pre-training: model, parallelism and batch, with Megatron's own defaults.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.base.errors import ConfigError
from predictor.configuration.readers.megatron_layout import open_group, parallelism, ranks_of_a_model, replicas
from predictor.configuration.readers.megatron_options import Options, load
from predictor.configuration.readers.megatron_precision import low_precision
from predictor.configuration.readers.megatron_recompute import recomputation
from predictor.configuration.readers.result import Read

FORMAT = "Megatron-LM arguments"
FAMILY = "megatron-lm"  # as predictor/step/published_runs.yaml spells it
GRAPHS = ("none", "local", "transformer_engine", "full_iteration")
WHOLE_GRAPHS = ("full", "full_iteration")
# Vocabulary sizes of tokenizers with a fixed vocabulary.
TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a shell script, a file of arguments, or a YAML list or mapping of them; nothing is run.

    Args:
        path: the file.
        num_gpus: GPUs of the run, from which the replicas follow; otherwise as the file says, if it does.

    Raises:
        ConfigError: an argument is unknown, contradicts another, or changes the cost in a way that is not modelled.
    """
    options, world_size, gpus_per_node = load(path)
    options.refuse()
    notes: list[str] = []
    content = {
        "model": _model(options, notes),
        "parallelism": parallelism(options, notes),
        "training": _training(options, notes),
    }
    unsaid = {} if "vocab_size" in content["model"] else {"model.vocab_size": f"{path.name} says no vocabulary size"}
    content["parallelism"] |= {"gpus_per_node": gpus_per_node} if gpus_per_node else {}
    model_ranks = ranks_of_a_model(options)
    if num_gpus is not None and num_gpus % model_ranks:
        raise ConfigError(
            f"{path.name}: {num_gpus} GPUs are no multiple of tensor × pipeline × context parallel size, {model_ranks}"
        )
    gpus = num_gpus or world_size
    if gpus is None or gpus % model_ranks:
        unsaid |= open_group(options, path.name)
        # Example scripts have one node, for the user to change.
        reason = "says no number of GPUs" if gpus is None else f"says {gpus} GPUs for a model that takes {model_ranks}"
        unsaid["parallelism.data_parallel_size"] = f"{path.name} {reason}"
    else:
        content["parallelism"] |= replicas(options, gpus // model_ranks)
    return Read(content, (*notes, *options.rest()), FORMAT, unsaid)


def _model(options: Options, notes: list[str]) -> dict[str, Any]:
    hidden = options.whole("hidden-size")
    gated = options.switch("swiglu")
    model: dict[str, Any] = {
        "num_layers": options.whole("num-layers", options.optional_whole("encoder-num-layers")),
        "hidden_size": hidden,
        "num_attention_heads": options.whole("num-attention-heads"),
        "sequence_length": options.whole("seq-length", options.optional_whole("encoder-seq-length")),
        # Two thirds for a gated FFN, cut down to a multiple of 64, so that it has about as many parameters.
        "ffn_hidden_size": options.whole("ffn-hidden-size", 8 * hidden // 3 // 64 * 64 if gated else 4 * hidden),
        "activation": "swiglu" if gated else "geglu" if options.switch("quick-geglu") else "gelu",
        "biases": _biases(options),
        "tied_embeddings": not options.switch("untie-embeddings-and-output-weights"),
        "attention_dropout": options.real("attention-dropout", 0.1),
        "hidden_dropout": options.real("hidden-dropout", 0.1),
        **_attention(options, notes),
        **_positions(options),
        **_vocabulary(options),
        **_kernels(options, notes),
    }
    if experts := _experts(options, model, notes):
        model["moe"] = experts
    return model


def _biases(options: Options) -> bool | str:
    only_qkv = options.switch("add-qkv-bias")
    return ("qkv" if only_qkv else False) if options.switch("disable-bias-linear") else True


def _attention(options: Options, notes: list[str]) -> dict[str, Any]:
    attention: dict[str, Any] = {}
    groups = options.whole("num-query-groups", 1)
    if options.switch("group-query-attention"):
        attention["num_key_value_heads"] = groups
    if (channels := options.optional_whole("kv-channels")) is not None:
        attention["head_dim"] = channels
    if options.switch("qk-layernorm"):
        attention["qk_norm"] = True
    window = options.get("window-size")
    if window is not None:
        left = re.match(r"\(?\s*(\d+)", str(window))
        if left is None:
            raise options.error("window-size", "expected the tokens to the left and right, such as 4096,0")
        attention["sliding_window"] = int(left[1]) + 1  # the token itself comes on top
    if options.text("cp-comm-type", "p2p") != "p2p":
        notes.append("--cp-comm-type: context parallelism is predicted as a ring (p2p)")
    return attention


def _positions(options: Options) -> dict[str, Any]:
    kind = options.text("position-embedding-type", "learned_absolute")
    longest = options.optional_whole("max-position-embeddings")
    share = options.real("rotary-percent", 1.0)
    if kind == "rope" or options.switch("use-rotary-position-embeddings"):
        return {"rotary_fraction": share}
    if kind != "learned_absolute":
        raise options.error("position-embedding-type", "expected learned_absolute or rope; others are not modelled")
    return {"rotary_fraction": 0.0} | ({} if longest is None else {"num_position_embeddings": longest})


def _vocabulary(options: Options) -> dict[str, int]:
    tokenizer = options.text("tokenizer-type", "GPT2BPETokenizer" if options.has("merge-file") else "")
    size = options.optional_whole("vocab-size")
    multiple = options.whole("make-vocab-size-divisible-by", 128) * options.whole("tensor-model-parallel-size", 1)
    padded = options.optional_whole("padded-vocab-size")
    if padded is not None:
        return {"vocab_size": padded}
    if size is None:
        size = TOKENIZERS.get(tokenizer)
    elif tokenizer == "NullTokenizer":
        size += 1  # it adds an end-of-document token
    if size is None:
        return {}
    is_usual = options.whole("make-vocab-size-divisible-by", 128) == 128  # then the predictor pads just so
    return {"vocab_size": size if is_usual else -(-size // multiple) * multiple}


def _kernels(options: Options, notes: list[str]) -> dict[str, Any]:
    """Return the keys that name kernels; Transformer Engine is the default from core release 0.6 on."""
    if not any(options.has(key) for key in ("transformer-impl", "use-flash-attn", "attention-backend")):
        notes.append("--transformer-impl is not in the file: predicted with transformer_engine and flash attention")
    is_local = options.text("transformer-impl", "transformer_engine", ("local", "transformer_engine")) == "local"
    backend = options.text("attention-backend", "auto", ("auto", "flash", "fused", "unfused", "local"))
    fuses_softmax = not options.switch("no-masked-softmax-fusion")
    if options.switch("use-flash-attn") or not (is_local or backend in ("unfused", "local")):
        attention = "flash"
    else:
        attention = "fused_softmax" if fuses_softmax else "unfused"
    is_rms = options.text("normalization", "LayerNorm", ("LayerNorm", "RMSNorm")) == "RMSNorm"
    norm = ("rms_norm" if is_local else "fused_rms_norm") if is_rms else "layer_norm"
    return {
        "attention": attention,
        "normalization": norm,
        "fused_side_kernels": _fuses_side_kernels(options, notes),
        **_loss(options, notes),
        **_rope_kernel(options, is_local),
    }


def _loss(options: Options, notes: list[str]) -> dict[str, str]:
    """Return the key of a fused loss."""
    implementation = options.text("cross-entropy-fusion-impl", "native", ("native", "te"))
    if not options.switch("cross-entropy-loss-fusion"):
        return {}
    if implementation == "native":
        notes.append("--cross-entropy-fusion-impl native: the loss is predicted in one kernel, as with te")
    return {"loss": "fused"}


def _rope_kernel(options: Options, is_local: bool) -> dict[str, bool]:
    is_off = options.switch("no-rope-fusion") or options.switch("rotary-interleaved")
    return {} if is_off or is_local or not _positions(options)["rotary_fraction"] else {"fused_rope": True}


def _fuses_side_kernels(options: Options, notes: list[str]) -> bool:
    dropout = not options.switch("no-bias-dropout-fusion")
    name = "no-bias-swiglu-fusion" if options.switch("swiglu") else "no-bias-gelu-fusion"
    activation = not options.switch(name)
    options.used |= {"no-bias-swiglu-fusion", "no-bias-gelu-fusion"}
    if dropout != activation:
        notes.append(f"--{name} and --no-bias-dropout-fusion differ: side kernels are predicted unfused")
    return dropout and activation


def _experts(options: Options, model: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    count = options.optional_whole("num-experts")
    width = options.whole("moe-ffn-hidden-size", model["ffn_hidden_size"])
    top_k = options.whole("moe-router-topk", 2)
    shared = options.whole("moe-shared-expert-intermediate-size", 0, least=0)
    gate = options.switch("moe-shared-expert-gate") or options.switch("moe-use-shared-expert-gate")
    capacity = options.real("moe-expert-capacity-factor", 0.0)
    dispatcher = options.text("moe-token-dispatcher-type", "allgather")
    frequency = options.get("moe-layer-freq")
    if count is None:
        return {}
    experts: dict[str, Any] = {"num_experts": count, "experts_per_token": top_k, "expert_ffn_hidden_size": width}
    if shared:
        experts |= {"shared_expert_ffn_hidden_size": shared, "shared_expert_gate": gate}
    if dense := _dense_layers(options, frequency, model["num_layers"]):
        experts["num_dense_layers"] = dense
    if capacity > 0:
        experts["capacity_factor"] = capacity
    if dispatcher != "alltoall" and options.whole("expert-model-parallel-size", 1) > 1:
        notes.append(f"--moe-token-dispatcher-type {dispatcher}: tokens are predicted to travel by all-to-all")
    return experts


def _dense_layers(options: Options, frequency: Any, layers: int) -> int:
    """Return the number of layers without experts at the start, from a period or a list such as ([0]*1+[1]*26).

    Raises:
        ConfigError: layers without experts stand elsewhere.
    """
    if frequency is None or str(frequency) == "1":
        return 0
    text = str(frequency).strip("'\"() ").replace(" ", "")
    pattern: list[int] = []
    for part in text.split("+"):
        run = re.fullmatch(r"\(?\[([01](?:,[01])*)\]\)?(?:\*(\d+))?", part)
        if run is None:
            raise options.error("moe-layer-freq", "expected 1, or a list such as [0]*1+[1]*31")
        pattern += [int(layer) for layer in run[1].split(",")] * int(run[2] or 1)
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    if len(pattern) != layers or 0 in pattern[dense:] or dense == layers:
        raise options.error(
            "moe-layer-freq", f"only layers at the start can go without experts, and it must name {layers} layers"
        )
    return dense


def _training(options: Options, notes: list[str]) -> dict[str, Any]:
    half, brain = options.switch("fp16"), options.switch("bf16")
    if half and brain:
        raise ConfigError(f"{options.where}: --fp16 and --bf16 are both given; write one of them")
    if options.text("optimizer", "adam") != "adam":
        raise options.error("optimizer", "only adam is modelled")
    batch = options.optional_whole("global-batch-size")
    training: dict[str, Any] = {
        "micro_batch_size": options.whole("micro-batch-size"),
        **({"num_micro_batches": 1} if batch is None else {"global_batch_size": batch}),
        "precision": "fp16" if half else "bf16" if brain else "fp32",
        **low_precision(options),
        **recomputation(options, notes),
        "fused_gradient_accumulation": _fuses_accumulation(options),
        **_cuda_graphs(options, notes),
        "framework": FAMILY,
    }
    if options.switch("distribute-saved-activations"):
        training["partition_activations"] = True
    return training


def _fuses_accumulation(options: Options) -> bool:
    """Return whether products of weight gradients add to Megatron's own buffer; parameters of FSDP2 have none."""
    is_off = options.switch("no-gradient-accumulation-fusion")
    return not is_off and not options.switch("use-torch-fsdp2")


def _cuda_graphs(options: Options, notes: list[str]) -> dict[str, bool]:
    """Return the key for CUDA graphs, with a note where they hold a part of a layer only."""
    older = [options.switch(key) for key in ("enable-cuda-graph", "external-cuda-graph")]
    scopes = [key for key in ("cuda-graph-scope", "cuda-graph-modules") if options.get(key) is not None]
    if options.text("cuda-graph-impl", "none", GRAPHS) == "none" and not any(older):
        return {}
    partial = {key: options.text(key, "full") for key in scopes if options.text(key, "full") not in WHOLE_GRAPHS}
    notes += [f"--{key} {scope}: all kernels are predicted to be in CUDA graphs" for key, scope in partial.items()]
    return {"cuda_graphs": True}
