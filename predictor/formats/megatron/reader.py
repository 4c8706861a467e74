"""Read the command line of a Megatron-LM pre-training: model, parallelism and batch, with Megatron's own defaults.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import settled_gpus
from predictor.formats.megatron.command import Command, load, of_arguments
from predictor.formats.megatron.deepspeed import is_deepspeed, overrides, prepare
from predictor.formats.megatron.encoder import encoder, word_pieces
from predictor.formats.megatron.exchange import cuda_graphs
from predictor.formats.megatron.experts import experts
from predictor.formats.megatron.kernels import kernels, positions
from predictor.formats.megatron.layers import layers, pattern_length, prediction_modules
from predictor.formats.megatron.layout import derived, parallelism, ranks_of_a_model, replicas
from predictor.formats.megatron.offloading import offloading, optimizer, state_bytes
from predictor.formats.megatron.options import ASKED, OLDER, Options
from predictor.formats.megatron.precision import fused_experts, low_precision
from predictor.formats.megatron.programs import check_program, refuse_forks
from predictor.formats.megatron.recompute import recomputation

FAMILY = "megatron-lm"  # as predictor/core/step/published_runs.yaml spells it
# Keys of ordinary attention that latent attention replaces.
OF_HEADS = ("num_key_value_heads", "head_dim", "qk_norm")
DEGREES = (
    "parallelism.tensor_parallel_size",
    "parallelism.pipeline_parallel_size",
    "parallelism.context_parallel_size",
)
# Vocabulary sizes of tokenizers with a fixed vocabulary.
TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a shell script, a file of arguments, or a YAML list or mapping of them; nothing is run.

    Args:
        path: the file.
        num_gpus: GPUs of the run, from which the replicas follow; otherwise as the file says, if it does.

    Raises:
        ConfigError: arguments are unknown, contradict each other, or change the cost in a way that is not modelled; the
            message has a line for each.
    """
    problems = Problems()
    return _read(load(path, problems.lines), problems, num_gpus)


def read_arguments(arguments: Mapping[str, Any], program: str, num_gpus: int | None) -> Read:
    """Read arguments by name, as Megatron-LM's own test recipes hold them.

    Raises:
        ConfigError: as those of a file.
    """
    problems = Problems()
    return _read(of_arguments(arguments, program, problems.lines), problems, num_gpus)


def _read(command: Command, problems: Problems, num_gpus: int | None) -> Read:
    """Return what a command says, once nothing of it is wrong."""
    options = command.options
    refuse_forks(options)
    options.rename(OLDER)
    if options.values.get("decoder-seq-length") == options.values.get("seq-length"):
        options.used.add("decoder-seq-length")  # which a decoder alone does not use
    notes = list(command.notes)
    is_encoder = problems.part(False, check_program, command, notes)
    unsaid: dict[str, str] = {}
    if is_deepspeed(options):
        prepare(options)
        decided = problems.part(dict[str, Any](), overrides, command, problems, notes, unsaid)
    else:
        decided = {}
    gpus = settled_gpus(num_gpus, command.world_size, options.where, notes)
    read = from_options(options, problems, notes, gpus, is_asked=num_gpus is not None)
    for section, keys in decided.items():
        merged = read.content[section] | keys
        read.content[section] = {key: value for key, value in merged.items() if value is not None}
    read.unsaid.update(unsaid)
    if is_encoder:
        read.content["model"] |= encoder(options)
    if command.blocking_launches:
        read.content["training"]["blocking_launches"] = True
    if command.gpus_per_node:
        read.content["parallelism"]["gpus_per_node"] = command.gpus_per_node
    problems.check()
    return read


def from_options(
    options: Options,
    problems: Problems,
    notes: list[str],
    gpus: int | None,
    is_asked: bool = False,
    model: dict[str, Any] | None = None,
) -> Read:
    """Return what arguments say, after recording what is wrong with them.

    Args:
        options: the arguments.
        problems: record of what is wrong; nothing of the result counts where there is something.
        notes: notes so far.
        gpus: of the run; None where they are not known.
        is_asked: the caller named the GPUs, not the file.
        model: the section ``model``, where it does not come from the arguments.
    """
    if model is None:
        model = problems.part(dict[str, Any](), model_section, options, notes, problems)
    content: dict[str, dict[str, Any]] = {
        "model": model,
        "parallelism": problems.part(dict[str, Any](), parallelism, options, notes),
        "training": problems.part(dict[str, Any](), _training, options, notes),
    }
    options.refuse()
    where = options.where
    unsaid = (
        {}
        if {"vocab_size", "preset"} & content["model"].keys()
        else {"model.vocab_size": f"{where} says no vocabulary size"}
    )
    asked = _asked(options, content)
    model_ranks = ranks_of_a_model(options)
    later: dict[str, Callable[[dict[str, Any]], Any]] = {}
    if any(key in DEGREES for key in asked):
        later = derived(options)
        unsaid["parallelism.data_parallel_size"] = f"{where}: the number of replicas follows from the GPUs"
    elif is_asked and gpus is not None and gpus % model_ranks:
        options.broken(
            ConfigError(
                f"{where}: {gpus} GPUs are no multiple of tensor × pipeline × context parallel size, {model_ranks}"
            )
        )
    elif gpus is None or gpus % model_ranks:
        later = derived(options)
        # Example scripts have one node, for the user to change.
        reason = "says no number of GPUs" if gpus is None else f"says {gpus} GPUs for a model that takes {model_ranks}"
        unsaid["parallelism.data_parallel_size"] = f"{where} {reason}"
    else:
        content["parallelism"] |= problems.part(dict[str, Any](), replicas, options, gpus // model_ranks)
    return Read(content, (*notes, *options.rest()), unsaid=unsaid | asked, derived=later)


def _asked(options: Options, content: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the keys that the user has to say, each with what the script says instead, after leaving them out."""
    found = {}
    for key, origin in options.asked.items():
        section, _, name = ASKED[key].partition(".")
        content[section].pop(name, None)
        if name != "num_position_embeddings":  # as many as a sample has tokens
            found[ASKED[key]] = f"{options.where}: {options.named(key)} is {origin}"
    if "hidden-size" in options.asked and not options.has("ffn-hidden-size"):
        content["model"].pop("ffn_hidden_size", None)
        if options.switch("swiglu"):
            found["model.ffn_hidden_size"] = (
                f"{options.where}: --ffn-hidden-size is two thirds of four times --hidden-size"
            )
    if "tensor-model-parallel-size" in options.asked:
        content["parallelism"]["sequence_parallel"] = options.switch("sequence-parallel")
    return found


def model_section(options: Options, notes: list[str], problems: Problems) -> dict[str, Any]:
    """Return the section ``model`` of a decoder whose sizes are arguments, after recording what is wrong with them."""
    hidden = options.whole("hidden-size")
    gated = options.switch("swiglu")
    model: dict[str, Any] = {
        "num_layers": options.whole(
            "num-layers", options.optional_whole("encoder-num-layers") or pattern_length(options)
        ),
        "hidden_size": hidden,
        "num_attention_heads": options.whole("num-attention-heads"),
        "sequence_length": options.whole("seq-length", options.optional_whole("encoder-seq-length")),
        # Two thirds for a gated FFN, cut down to a multiple of 64, so that it has about as many parameters.
        "ffn_hidden_size": options.whole("ffn-hidden-size", 8 * hidden // 3 // 64 * 64 if gated else 4 * hidden),
        "activation": _activation(options, gated),
        "biases": _biases(options),
        "tied_embeddings": not options.switch("untie-embeddings-and-output-weights"),
        "attention_dropout": options.real("attention-dropout", 0.1),
        "hidden_dropout": options.real("hidden-dropout", 0.1),
    }
    for part in (_attention, positions, _vocabulary, kernels):
        model |= problems.part(dict[str, Any](), part, options, notes)
    model |= problems.part(dict[str, Any](), layers, options, model)
    notes += prediction_modules(options)
    if "latent_attention" in model:
        model = {key: value for key, value in model.items() if key not in OF_HEADS}
    if options.switch("embed-layernorm"):
        model["embedding_norm"] = True
    return model | problems.part(dict[str, Any](), experts, options, model)


def _activation(options: Options, gated: bool) -> str:
    """Return the FFN's non-linearity; a gate counts before the others."""
    written = {"geglu": options.switch("quick-geglu"), "squared_relu": options.switch("squared-relu")}
    glu = options.text("glu-activation", "", ("geglu", "swiglu"))  # of Megatron-DeepSpeed
    gated, written["geglu"] = gated or glu == "swiglu", written["geglu"] or glu == "geglu"
    return "swiglu" if gated else next((name for name, is_on in written.items() if is_on), "gelu")


def _biases(options: Options) -> bool | str:
    only_qkv = options.switch("add-qkv-bias")
    return ("qkv" if only_qkv else False) if options.switch("disable-bias-linear") else True


def _attention(options: Options, notes: list[str]) -> dict[str, Any]:
    attention: dict[str, Any] = {}
    groups = options.whole("num-query-groups", 1)
    if options.switch("group-query-attention"):
        attention["num_key_value_heads"] = groups
    elif groups > 1:
        notes.append("--num-query-groups without --group-query-attention: every head has keys and values of its own")
    if (channels := options.optional_whole("kv-channels")) is not None:
        attention["head_dim"] = channels
    if options.switch("qk-layernorm"):
        attention["qk_norm"] = True
    elif options.switch("qk-l2-norm"):  # of Llama 4
        attention["qk_norm"] = "weightless"
    if options.switch("attention-output-gate"):
        attention["attention_output_gate"] = True
    window = options.get("window-size")
    if window is not None:
        left = re.match(r"\(?\s*(\d+)", str(window))
        if left is None:
            raise options.error("window-size", "expected the tokens to the left and right, such as 4096,0")
        attention["sliding_window"] = int(left[1]) + 1  # the token itself comes on top
    if options.text("cp-comm-type", "p2p") != "p2p":
        notes.append("--cp-comm-type: context parallelism is predicted as a ring (p2p)")
    return attention


def _vocabulary(options: Options, notes: list[str]) -> dict[str, Any]:
    tokenizer = options.text("tokenizer-type", "GPT2BPETokenizer" if options.has("merge-file") else "")
    size = options.optional_whole("vocab-size")
    multiple = options.whole("make-vocab-size-divisible-by", 128) * options.whole("tensor-model-parallel-size", 1)
    padded = options.optional_whole("padded-vocab-size")
    if padded is not None:
        return {"vocab_size": padded}
    if size is None:
        size = TOKENIZERS.get(tokenizer) or word_pieces(options)
    elif tokenizer == "NullTokenizer":
        size += 1  # it adds an end-of-document token
    if size is None:
        return {}
    is_usual = options.whole("make-vocab-size-divisible-by", 128) == 128  # then the predictor pads just so
    return {"vocab_size": size if is_usual else -(-size // multiple) * multiple}


def _training(options: Options, notes: list[str]) -> dict[str, Any]:
    half, brain = options.switch("fp16"), options.switch("bf16")
    if half and brain:
        options.broken(ConfigError(f"{options.where}: --fp16 and --bf16 are both given; write one of them"))
    batch = options.optional_whole("global-batch-size")
    training: dict[str, Any] = {
        "micro_batch_size": options.whole("micro-batch-size"),
        **({"num_micro_batches": 1} if batch is None else {"global_batch_size": batch}),
        "precision": "fp16" if half else "bf16" if brain else "fp32",
        **low_precision(options),
        **fused_experts(options),
        **recomputation(options, notes),
        **offloading(options),
        **optimizer(options),
        **state_bytes(options),
        "fused_gradient_accumulation": _fuses_accumulation(options),
        **cuda_graphs(options, notes),
        "framework": FAMILY,
    }
    if options.switch("distribute-saved-activations"):
        training["partition_activations"] = True
    return training


def _fuses_accumulation(options: Options) -> bool:
    """Return whether products of weight gradients add to Megatron's own buffer; parameters of FSDP2 have none."""
    is_off = options.switch("no-gradient-accumulation-fusion")
    return not is_off and not options.switch("use-torch-fsdp2")
