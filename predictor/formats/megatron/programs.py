"""Programs of Megatron-LM that train something else than a decoder: their arguments must not be read as one."""

from __future__ import annotations

import re

from predictor.core.base.errors import ConfigError
from predictor.formats.known_keys import known_keys
from predictor.formats.megatron.command import Command
from predictor.formats.megatron.options import KEYS, Options

# Reasons by the beginning of the program's name.
REFUSED = {
    "pretrain_prefix": "it trains a decoder that sees a prefix at once, which is not modelled",
    "finetune_t0_non_causal": "it trains a decoder that sees a prefix at once, which is not modelled",
    "pretrain_t5": "it trains an encoder with a decoder (T5), which is not modelled",
    "pretrain_ict": "it trains a retriever, which is not modelled",
    "pretrain_realm": "it trains a retriever, which is not modelled",
    "pretrain_biencoder": "it trains a retriever, which is not modelled",
    "pretrain_retro": "it trains with retrieval, which is not modelled",
    "pretrain_vision": "it trains a vision model, which is not modelled",
    "pretrain_vlm": "it trains a vision tower beside the language model, which is not read",
    "pretrain_gan": "it trains a vision model, which is not modelled",
    "finetune_race": "it trains an encoder (BERT), which is not read",
    "run_text_generation": "it generates text; expected a training",
    "generate": "it generates text; expected a training",
    "evaluate": "it evaluates; expected a training",
    "gpt_dynamic_inference": "it generates text; expected a training",
    "gpt_static_inference": "it generates text; expected a training",
    "train_rl": "its steps generate text as well, which is not modelled",
}
ENCODER = "pretrain_bert"
OF_LLAMA = re.compile(r"llama", re.IGNORECASE)
GATES = frozenset({"swiglu", "model-type", "use-mcore-models", "yaml-cfg"})
USUAL = ("pretrain_gpt.py", "pretrain_mamba.py", "pretrain_hybrid.py")
# Words of tasks/main.py that name what a run does.
TASKS = ("MNLI", "QQP", "RACE", "LAMBADA", "WIKITEXT103", "ICT-ZEROSHOT-NQ", "RETRIEVER-EVAL", "RET-FINETUNE-NQ")
# Arguments that only a fork has, whose others would each be an unknown one.
FORKS = {
    "MindSpeed-LLM, for Ascend NPUs": (
        "mla-fa-without-pad",
        "multi-head-latent-attention",
        "swap-optimizer",
        "swap-attention",
        "use-ascend-coc",
        "use-ascend-mc2",
        "use-fused-rmsnorm",
        "use-fused-rotary-pos-emb",
        "use-fused-swiglu",
    ),
}
OF_A_FILE = frozenset({"yaml-cfg", "cli-arg-yaml-cfgs"})  # which holds the sizes that would be missed here
WORD_PIECES = "BertWordPiece"
BERT_VOCABULARY = re.compile(r"(?:bert|vocab)[\w.-]*\.txt$")


def refuse_forks(options: Options) -> None:
    """Refuse arguments of a fork at once, instead of one by one as unknown, and those that stand in another file.

    Raises:
        ConfigError: there are such arguments.
    """
    for key in OF_A_FILE & options.values.keys():
        raise options.error(key, known_keys(KEYS).refused[key.replace("-", "_")])
    for name, own in FORKS.items():
        found = [f"--{key}" for key in own if key in options.values]
        if found:
            raise ConfigError(
                f"{options.where}: {', '.join(found[:3])} {'are' if len(found) > 1 else 'is'} of {name}, a fork of "
                "Megatron-LM that is not read; write Megatron-LM's own arguments, or a configuration"
            )


def check_program(command: Command, notes: list[str]) -> bool:
    """Return whether a command trains an encoder (BERT); note a program that is not Megatron's own.

    Raises:
        ConfigError: the program or its arguments are those of a retriever, a vision model or no training, or may be
            those of an encoder.
    """
    options, program = command.options, command.program
    for name, reason in REFUSED.items():
        if program.startswith(name):
            raise ConfigError(f"{options.where}: the program is {program}; {reason}")
    task = options.values.get("task")
    if task is not None or program == "main.py":
        raise ConfigError(
            f"{options.where}: the program is {program or 'a task'}; it fine-tunes or evaluates on a task"
        )
    if program.startswith(ENCODER) or any(key.startswith("bert-") for key in options.values):
        return True
    if may_be_encoder := _may_be_encoder(options):
        raise options.error(may_be_encoder, "it is an encoder's (BERT, T5); name the program, pretrain_bert.py")
    if OF_LLAMA.search(program) and not GATES & options.values.keys():
        raise ConfigError(
            f"{options.where}: the program is {program}, of a fork that builds LLaMA's layers itself; write what "
            "Megatron-LM needs for them: --swiglu --normalization RMSNorm --disable-bias-linear "
            "--untie-embeddings-and-output-weights --position-embedding-type rope"
        )
    if program and program not in USUAL:
        notes.append(f"{options.where}: the program is {program}; predicted as Megatron-LM's pretrain_gpt.py")
    return False


def _may_be_encoder(options: Options) -> str | None:
    """Return an argument that a decoder does not have: the word pieces of BERT and T5."""
    if str(options.values.get("tokenizer-type") or "").startswith(WORD_PIECES):
        return "tokenizer-type"
    vocabulary = str(options.values.get("vocab-file") or "")
    return "vocab-file" if BERT_VOCABULARY.search(vocabulary) and not options.has("merge-file") else None
