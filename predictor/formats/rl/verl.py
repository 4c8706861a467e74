"""Read the update of the actor in a run of verl: keys on a command line, or YAML; or its supervised fine-tuning.

Source of names and defaults: volcengine/verl 0.9, verl/trainer/config/_generated_ppo_trainer.yaml,
_generated_ppo_megatron_trainer.yaml and verl/workers/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.fsdp_stack import ON_HOST
from predictor.formats.hub_section import fsdp, hub_section, lora, replicas
from predictor.formats.hydra import composed, invocations, overridden
from predictor.formats.interpolation import filled
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.rl.actor import (
    DEGREES,
    asked,
    flattened,
    left_out,
    longest,
    megatron_update,
    number,
    tokens_to_samples,
)
from predictor.formats.shell.words import is_unknown
from predictor.formats.source import YAML, Source

KEYS = "verl"
ATTENTIONS = ("flash_attention_2", "flash_attention_3", "sdpa")
PROGRAMS = re.compile(
    r"\bmain_\w*ppo\b|\bverl\.trainer\.\w+|\brecipe\.\w+\.main\w*|\bmain_(?:dapo|agent)\b|\bsft_trainer\w*\b"
)
NO_TRAINING = re.compile(r"main_(?:generation|eval|filter)\w*$")
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
LAUNCHER = {"nproc-per-node": 0, "nnodes": 1}
SHARDS = ("fsdp", "fsdp2")
MEGATRON = "megatron"
LAYOUT = (*DEGREES, "use_distributed_optimizer")
ON = (True, "True", "true")  # a command line has texts


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a run of verl.

    Args:
        path: a script, or YAML.
        num_gpus: GPUs of the run; otherwise trainer.nnodes × trainer.n_gpus_per_node.

    Raises:
        ConfigError: the file starts no training of verl, or something changes the cost in a way that is not modelled;
            the message has a line for each problem.
    """
    problems, notes = Problems(), list[str]()
    content, program, flags = _keys(path)
    if NO_TRAINING.search(program):
        raise ConfigError(f"{path.name}: the program is {program}; it generates or evaluates, expected a training")
    fields = Fields(flattened(filled(content, path.name)), path.name, problems=problems.lines)
    launched = [number(flags.get(key)) for key in LAUNCHER]
    run = _Run(fields, problems, notes, "sft" in program or "actor_rollout_ref" not in content)
    read = run.read(num_gpus, launched, "megatron" in flags.get("config-name", ""))
    problems.check()
    return read


def _keys(path: Path) -> tuple[dict[str, Any], str, dict[str, str]]:
    """Return the keys of a run, the program and its launcher's arguments.

    Raises:
        ConfigError: a script starts no program of verl.
    """
    source = Source(path)
    if source.syntax == YAML:
        return composed(path).content, "", {}
    started = [one for one in invocations(source.text, PROGRAMS) if one.overrides]
    if not started:
        raise ConfigError(f"{path.name} starts no program of verl with keys such as trainer.nnodes=1")
    last = started[-1]
    return overridden({}, last.overrides), last.program, {**last.launcher, **last.flags}


class _Run:
    """One run being read."""

    def __init__(self, fields: Fields, problems: Problems, notes: list[str], is_tuning: bool) -> None:
        self.fields, self.problems, self.notes, self.where = fields, problems, notes, fields.where
        self.is_tuning = is_tuning
        self.unsaid: dict[str, str] = {}
        self.whole_micro = 0  # samples of a micro-batch over all GPUs, as older files have it
        self.model_prefix = "model." if is_tuning else "actor_rollout_ref.model."

    def value(self, key: str, default: int) -> int | None:
        """Return a number; None, and a question, where only a run knows it."""
        value = self.fields.get(key)
        return default if value is None else number(value)

    def known(self, key: str, default: int, question: str) -> int:
        """Return a number that a step depends on; where only a run knows it, it is asked for."""
        found = self.value(key, default)
        if found is None:
            self.unsaid[question] = f"{self.where}: {key} is {_shown(self.fields.values[key])}, which only a run knows"
        return default if found is None else found

    def read(self, num_gpus: int | None, launched: list[int | None], is_megatron: bool) -> Read:
        """Return what the run says."""
        fields = self.fields
        chosen = str(fields.values.get("model_engine") or fields.values.get("engine") or SHARDS[0])
        engine = MEGATRON if is_megatron else chosen
        strategy = str(fields.get("model.strategy" if self.is_tuning else f"{ACTOR}strategy") or engine)
        fields.used |= {"model_engine", "engine"}
        attention = f"{self.model_prefix}override_config.attn_implementation"
        if fields.has(attention) and fields.get(attention) not in ATTENTIONS:
            fields.broken(fields.error(attention, f"modelled: {', '.join(ATTENTIONS)}"))
        if strategy not in (*SHARDS, MEGATRON):
            raise ConfigError(f"{self.where}: the actor's strategy is {strategy}; modelled: fsdp, fsdp2 and megatron")
        self.optimizer()
        name_key = f"{self.model_prefix}{'partial_pretrain' if self.is_tuning else 'path'}"
        name_key = name_key if fields.has(name_key) else f"{self.model_prefix}path"
        model = hub_section(fields.get(name_key), name_key, self.where, self.unsaid, self.notes)
        model["sequence_length"] = self.length()
        gpus = (settled_gpus(num_gpus, self.gpus(launched), self.where, self.notes), num_gpus is not None)
        batch = self.batch(model["sequence_length"])
        read = self.of_megatron(model, batch, gpus) if strategy == MEGATRON else self.of_fsdp(model, batch, gpus)
        read.content["training"] |= self.problems.part(dict[str, Any](), self.adapters)
        notes = tuple(dict.fromkeys((*self.notes, *read.notes, *self.rest())))
        return asked(Read(read.content, notes, unsaid=read.unsaid, derived=read.derived), self.unsaid)

    def optimizer(self) -> None:
        """Refuse an optimizer other than Adam."""
        key = "optim.optimizer" if self.is_tuning else f"{ACTOR}optim.optimizer"
        name = str(self.fields.get(key) or "AdamW")
        if name.lower() not in ("adam", "adamw") and not is_unknown(name):
            self.fields.broken(self.fields.error(key, f"{name} is not modelled; expected adam or AdamW"))

    def length(self) -> int:
        """Return the tokens of the longest sample."""
        if self.is_tuning:
            length = self.known("data.max_length", 1024, "model.sequence_length")
            self.notes.append(longest(self.where, length, 0, self.drops_padding()))
            return length
        prompt = self.known("data.max_prompt_length", 512, "model.sequence_length")
        response = self.known("data.max_response_length", 512, "model.sequence_length")
        self.notes.append(longest(self.where, prompt, response, self.drops_padding()))
        return prompt + response

    def drops_padding(self) -> bool:
        """Return whether samples stand without padding."""
        key = "use_remove_padding" if self.is_tuning else "actor_rollout_ref.model.use_remove_padding"
        return self.fields.get(key) in ON

    def gpus(self, launched: list[int | None]) -> int | None:
        """Return the GPUs of the run: the launcher's in fine-tuning, the trainer's otherwise."""
        each, nodes = (self.value(key, size) for key, size in (("trainer.n_gpus_per_node", 8), ("trainer.nnodes", 1)))
        if self.is_tuning:
            each, nodes = launched[0], launched[1] or 1
        return None if each is None or nodes is None else each * nodes

    def batch(self, length: int) -> dict[str, Any]:
        """Return the samples of an update, and those of a micro-batch."""
        if self.is_tuning:
            total, prefix, own = "data.train_batch_size", "data.", "micro_batch_size"
            samples = self.known(total, 256, "training.global_batch_size")
        else:
            prefix, own = ACTOR, "ppo_micro_batch_size"
            mini = self.known(f"{ACTOR}ppo_mini_batch_size", 256, "training.global_batch_size")
            answers = self.known(f"{ROLLOUT}n", 1, "training.global_batch_size")
            samples = mini * answers
            self.updates(mini)
        keys: dict[str, Any] = {"global_batch_size": samples}
        fills = self.fields.get(f"{prefix}use_dynamic_bsz") in ON
        tokens = f"{prefix}{'max_token_len_per_gpu' if self.is_tuning else 'ppo_max_token_len_per_gpu'}"
        if fills:
            self.fields.used |= {f"{prefix}{own}_per_gpu", f"{prefix}{own}"}
            if "model.sequence_length" in self.unsaid:
                self.unsaid["training.micro_batch_size"] = f"{self.where}: {tokens} counts from that length"
            most = self.known(tokens, 16384, "training.micro_batch_size") * self.ulysses()
            return keys | {"micro_batch_size": tokens_to_samples(most, length, self.where, tokens, self.notes)}
        micro = self.value(f"{prefix}{own}_per_gpu", 0)
        self.whole_micro = self.value(f"{prefix}{own}", 0) or 0
        if micro:
            return keys | {"micro_batch_size": micro}
        if not self.whole_micro:
            self.unsaid["training.micro_batch_size"] = f"{self.where}: {prefix}{own}_per_gpu is not said"
        return keys

    def updates(self, mini: int) -> None:
        """Note how many updates a step of reinforcement learning has."""
        whole, rounds = self.value("data.train_batch_size", 1024), self.value(f"{ACTOR}ppo_epochs", 1)
        if whole and rounds and mini and whole % mini == 0:
            self.notes.append(
                f"{self.where}: predicted is one update of the actor; a step of training has {whole // mini * rounds} "
                "of them, beside rollout, log-probabilities and rewards"
            )

    def ulysses(self) -> int:
        """Return the ranks that split samples by heads."""
        keys = ("ulysses_sequence_parallel_size", f"{ACTOR}ulysses_sequence_parallel_size")
        own = f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size"
        return max(self.value(key, 1) or 1 for key in (*keys, own))

    def of_fsdp(self, model: dict[str, Any], batch: dict[str, Any], gpus: tuple[int | None, bool]) -> Read:
        """Return an update that FSDP runs."""
        prefix = "model.fsdp_config." if self.is_tuning else f"{ACTOR}fsdp_config."
        fields, ranks = self.fields, self.ulysses()
        dtype = str(fields.get(f"{prefix}model_dtype") or "fp32")
        keys = fsdp(dtype in ("fp32", "float32"), stays_gathered=fields.get(f"{prefix}reshard_after_forward") is False)
        shards = f"{prefix}sharding_strategy"  # of forks
        if fields.get(shards) not in (None, "FULL_SHARD"):
            fields.broken(fields.error(shards, "only FULL_SHARD is read"))
        reduced = str(fields.get(f"{prefix}mixed_precision.reduce_dtype") or "fp32")
        keys["fp32_gradients"] = reduced in ("fp32", "float32")
        if ranks > 1:
            keys["context_parallel_size"] = ranks
            self.notes.append(
                f"{self.where}: ulysses_sequence_parallel_size is predicted as a ring of context parallelism"
            )
        keys |= self.problems.part(dict[str, Any](), replicas, gpus[0], ranks, self.where, self.unsaid, gpus[1])
        group = self.value(f"{prefix}fsdp_size", -1)
        dp = keys.get("data_parallel_size")
        if group and dp and 0 < group < dp * ranks:
            keys["zero_group_size"] = group
        if "micro_batch_size" not in batch and dp and self.whole_micro:
            batch["micro_batch_size"] = max(1, self.whole_micro // dp)
        checkpoints = fields.get(f"{self.model_prefix}enable_gradient_checkpointing") not in (False, "False", "false")
        training = {**batch, "precision": "bf16", "recompute": "full" if checkpoints else "none"}
        training |= {"recompute_stops_early": True} if checkpoints else {}
        training["framework"] = "transformers"
        if any(fields.get(f"{prefix}{key}") in ON for key in ("offload_policy", "cpu_offload")):
            training |= ON_HOST
        if fields.get(f"{self.model_prefix}enable_activation_offload") in ON:
            training["offload_activations"] = True
        fused = fields.get(f"{self.model_prefix}use_fused_kernels") in ON
        liger = fields.get(f"{self.model_prefix}use_liger") in ON
        loss = {"loss": "fused" if fused or liger else "torch"}
        return Read({"model": model | loss, "parallelism": keys, "training": training}, ())

    def of_megatron(self, model: dict[str, Any], batch: dict[str, Any], gpus: tuple[int | None, bool]) -> Read:
        """Return an update that Megatron-core runs."""
        prefix, fields = f"{ACTOR}megatron.", self.fields
        fields.used |= {f"{self.model_prefix}enable_gradient_checkpointing", f"{self.model_prefix}use_fused_kernels"}
        own: dict[str, Any] = {"sequence_parallel": True, "use_distributed_optimizer": True}
        for key in list(fields.values):
            if key.startswith(prefix) and key.removeprefix(prefix) in LAYOUT:
                own[key.removeprefix(prefix)] = fields.get(key)
        own = {key: number(value) if isinstance(value, str) else value for key, value in own.items()}
        inner = f"{prefix}override_transformer_config."
        for key in list(fields.values):
            if key.startswith(inner):
                own[key.removeprefix(inner)] = fields.get(key)
        shards = own.pop("use_distributed_optimizer")
        if "micro_batch_size" not in batch and self.whole_micro:
            self.unsaid["training.micro_batch_size"] = f"{self.where}: {ACTOR}ppo_micro_batch_size_per_gpu is not said"
        micro = batch.get("micro_batch_size", 1)
        if number(own.get("tensor_model_parallel_size", 1)) == 1:
            own["sequence_parallel"] = False
        tuned = f"{ACTOR}optim.override_optimizer_config."
        sections: dict[str, dict[str, Any]] = {
            "optimizer": {
                key.removeprefix(tuned): fields.get(key) for key in list(fields.values) if key.startswith(tuned)
            },
            "model": {key: value for key, value in own.items() if value is not None},
            "train": {"micro_batch_size": micro, "global_batch_size": batch["global_batch_size"]},
            "ddp": {"use_distributed_optimizer": bool(shards), "grad_reduce_in_fp32": True},
            "mixed_precision": {"bf16": True, "grad_reduce_in_fp32": True},
        }
        return megatron_update(sections, model, self.where, self.problems, self.notes, gpus)

    def adapters(self) -> dict[str, Any]:
        """Return the key of ``training`` on adapters."""
        prefix = self.model_prefix
        rank = self.value(f"{prefix}lora_rank", 0) or self.value(f"{prefix}lora.rank", 0)
        named = self.fields.get(f"{prefix}target_modules") or self.fields.get(f"{prefix}lora.target_modules")
        return lora(rank, named, named is None, self.where) if rank else {}

    def rest(self) -> list[str]:
        """Return notes on what the update's prediction leaves out, and record keys that are refused."""
        unused = self.fields.unused()
        rollout = [key.removeprefix("actor_rollout_ref.") for key in unused if key.startswith(ROLLOUT)]
        scoring = [key for key in unused if re.match(r"actor_rollout_ref\.ref\.|reward|critic\.|teacher", key)]
        off = [key for key in unused if re.search(r"\.(?:param|optimizer|grad)_offload$", key)]
        moved = [key for key in off if key.startswith((ACTOR, "model.")) and self.fields.values[key] in ON]
        notes = left_out(self.where, rollout, "the rollout")
        notes += left_out(self.where, scoring, "the pass of reference, critic and rewards")
        notes += left_out(self.where, moved, "the transfer of states to the host between phases")
        self.fields.used |= {*scoring, *off}
        plain = {key: value for key, value in self.fields.values.items() if not _is_open(value)}
        self.fields.values = plain
        return notes + rest(known_keys(KEYS), "verl", [self.fields])


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and is_unknown(value)


def _shown(value: Any) -> str:
    return str(value).replace("\x00", "$", 1).replace("\x00", "")
