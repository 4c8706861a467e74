"""Read the update of the trained model in a command line of OpenRLHF: SFT, DPO, reward model, PPO and its kin.

Source of names and defaults: OpenRLHF 0.9, openrlhf/cli/train_sft.py, train_dpo.py, train_ppo_ray.py and
openrlhf/utils/deepspeed/deepspeed_utils.py (get_train_ds_config); later releases have torch's FSDP2 beside it,
openrlhf/utils/fsdp2/strategy.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.deepspeed import reader as deepspeed
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.fsdp_stack import ON_HOST
from predictor.formats.hub_section import fsdp, hub_section, lora, replicas
from predictor.formats.hydra import Invocation, invocations
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.rl.actor import asked, left_out, longest, number, tokens_to_samples
from predictor.formats.shell.words import is_unknown

KEYS = "openrlhf"
PROGRAMS = re.compile(r"\bopenrlhf\.cli\.train_\w+|\btrain_(?:sft|dpo|rm|kto|ppo|ppo_ray|kd|prm)(?:\.py)?$")
PAIRS = ("dpo", "rm")  # programs of which a sample is two sequences
ONLINE = ("ppo", "ppo_ray")
REFUSED = {"kd": "a teacher's pass beside the student's is not read", "prm": "a process reward model is not read"}
PARTS = re.compile(r"^(?:ref|reward|critic|vllm|remote|colocate)(?:-|$)")
# Newer releases have names with a section in front.
OLDER = {
    "model.model-name-or-path": "pretrain",
    "actor.model-name-or-path": "pretrain",
    "data.max-len": "max-len",
    "train.batch-size": "train-batch-size",
    "train.micro-batch-size": "micro-train-batch-size",
    "ds.zero-stage": "zero-stage",
    "ds.adam-offload": "adam-offload",
    "ds.param-dtype": "param-dtype",
    "ds.packing-samples": "packing-samples",
    "ds.attn-implementation": "attn-implementation",
    "model.gradient-checkpointing-enable": "gradient-checkpointing",
    "model.lora.rank": "lora-rank",
    "model-name-or-path": "pretrain",
    "fsdp2-cp-size": "ring-attn-size",
    "fsdp2-tp-size": "ds-tensor-parallel-size",
}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a command line of OpenRLHF.

    Args:
        path: a script.
        num_gpus: GPUs of the run; otherwise as the launcher or --actor_num_gpus_per_node say.

    Raises:
        ConfigError: the file starts no training of OpenRLHF, or something changes the cost in a way that is not
            modelled; the message has a line for each problem.
    """
    started = [one for one in invocations(path.read_text(encoding="utf-8", errors="replace"), PROGRAMS) if one.flags]
    if not started:
        raise ConfigError(f"{path.name} starts no training of OpenRLHF (openrlhf.cli.train_…)")
    problems = Problems()
    command = _Command(started[-1], path.name, problems)
    read = command.read(num_gpus)
    problems.check()
    return read


class _Command:
    """One command line being read."""

    def __init__(self, started: Invocation, where: str, problems: Problems) -> None:
        name = started.program.removesuffix(".py").rpartition(".")[2].removeprefix("train_")
        flags: dict[str, Any] = {}
        for key, value in started.flags.items():
            flags[OLDER.get(key, key)] = True if value == "" else value
        self.is_sharded = any(key.startswith("fsdp2-") for key in started.flags)
        self.kind, self.where, self.problems, self.launcher = name, where, problems, started.launcher
        self.fields = Fields(flags, where, "--", problems=problems.lines)
        self.notes: list[str] = []
        self.unsaid: dict[str, str] = {}
        if name in REFUSED:
            raise ConfigError(f"{where}: the program is {started.program}; {REFUSED[name]}")

    def known(self, key: str, default: int, question: str) -> int:
        """Return a number that a step depends on; where only a run knows it, it is asked for."""
        value = self.fields.get(key)
        found = default if value is None else number(value)
        if found is None:
            self.unsaid[question] = (
                f"{self.where}: --{key.replace('-', '_')} is set by a variable that only a run knows"
            )
        return default if found is None else found

    def read(self, num_gpus: int | None) -> Read:
        """Return what the command says."""
        fields = self.fields
        name = fields.get("pretrain")
        model = hub_section(name, "--pretrain", self.where, self.unsaid, self.notes)
        length = self.length()
        gpus = settled_gpus(num_gpus, self.gpus(), self.where, self.notes)
        rings = self.known("ring-attn-size", 1, "parallelism.context_parallel_size")
        tp = self.known("ds-tensor-parallel-size", 1, "parallelism.tensor_parallel_size")
        degrees = self.problems.part(
            dict[str, Any](), replicas, gpus, rings * tp, self.where, self.unsaid, num_gpus is not None
        )
        degrees |= {"context_parallel_size": rings} if rings > 1 else {}
        degrees |= {"tensor_parallel_size": tp} if tp > 1 else {}
        written = self.as_deepspeed(length)
        read = self.sharded(written) if self.is_sharded else deepspeed.from_mapping(written, self.where, self.problems)
        read.content["parallelism"] |= degrees
        training = read.content["training"]
        training |= {"recompute": "full" if fields.switch("gradient-checkpointing") else "none"}
        if training["recompute"] == "none":
            training.pop("recompute_stops_early", None)
        training |= self.problems.part(dict[str, Any](), self.adapters)
        if self.kind == "dpo":  # its reference is a model of its own, beside adapters too (cli/train_dpo.py)
            training["reference_model"] = "separate"
        loss = "fused" if fields.switch("use-liger-kernel") else "torch"
        loss = "vocabulary_parallel" if fields.switch("fsdp2-tp-loss-parallel") else loss
        loss = "score" if self.kind == "rm" else loss
        content = {"model": model | {"sequence_length": length, "loss": loss}} | read.content
        left = {key: why for key, why in read.unsaid.items() if key.startswith("model.")}
        notes = (*self.notes, *read.notes, *self.rest())
        return asked(Read(content, tuple(dict.fromkeys(notes)), unsaid=left, derived=read.derived), self.unsaid)

    def sharded(self, written: dict[str, Any]) -> Read:
        """Return the command as torch's FSDP2 runs it: weights and gradients in fp32, cast for products."""
        fields = self.fields
        stays = fields.switch("no-fsdp2-reshard-after-forward")
        keys = fsdp(True, stays_gathered=stays)
        if fields.switch("fsdp2-tp-sequence-parallel"):
            keys["sequence_parallel"] = True
        training = {
            "global_batch_size": written["train_batch_size"],
            "micro_batch_size": written["train_micro_batch_size_per_gpu"],
            "precision": "fp16" if "fp16" in written else "bf16",
            "framework": "transformers",
            "recompute_stops_early": True,
        }
        training |= ON_HOST if fields.switch("fsdp2-cpu-offload") else {}
        return Read({"parallelism": keys, "training": training}, ())

    def length(self) -> int:
        """Return the tokens of the longest sample."""
        packs = self.fields.switch("packing-samples")
        if self.kind not in ONLINE:
            length = self.known("max-len", 2048, "model.sequence_length")
            self.notes.append(longest(self.where, length, 0, packs))
            return length
        whole = self.fields.get("max-len")
        prompt = self.known("prompt-max-len", 1024, "model.sequence_length")
        answer = self.known("generate-max-len", 1024, "model.sequence_length")
        if number(whole) is not None:
            prompt, answer = number(whole) or prompt, 0
        self.notes.append(longest(self.where, prompt, answer, packs))
        return prompt + answer

    def as_deepspeed(self, length: int) -> dict[str, Any]:
        """Return the command as the configuration that OpenRLHF makes of it."""
        fields, factor = self.fields, 2 if self.kind in PAIRS else 1
        total = self.known("train-batch-size", 128, "training.global_batch_size") * factor
        if fields.switch("use-dynamic-batch"):
            fields.used.add("micro-train-batch-size")
            tokens = self.known("train-max-tokens-per-gpu", 16192, "training.micro_batch_size")
            micro = tokens_to_samples(tokens, length, self.where, "--train_max_tokens_per_gpu", self.notes)
        else:
            micro = self.known("micro-train-batch-size", 1, "training.micro_batch_size") * factor
        if factor > 1:
            self.notes.append(f"{self.where}: a sample of {self.kind} is two sequences, a chosen and a rejected one")
        written = str(fields.get("zero-stage") or 2)
        stage = 2 if is_unknown(written) else number(written)
        if stage is None or not 0 <= stage <= 3:
            fields.broken(fields.error("zero-stage", "expected 0, 1, 2 or 3"))
        if is_unknown(written):
            self.unsaid["parallelism.zero_stage"] = (
                f"{self.where}: --zero_stage is set by a variable that only a run knows"
            )
        zero: dict[str, Any] = {"stage": stage or 0, "reduce_bucket_size": "auto", "overlap_comm": False}
        if fields.switch("overlap-comm"):
            zero["overlap_comm"] = True
        if fields.switch("adam-offload"):
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        half = str(fields.get("param-dtype") or "bf16")
        fields.used.add("bf16")
        return {
            "train_batch_size": total,
            "train_micro_batch_size_per_gpu": micro,
            "zero_optimization": zero,
            "fp16" if half == "fp16" else "bf16": {"enabled": True},
            **(
                {"data_types": {"grad_accum_dtype": fields.get("grad-accum-dtype")}}
                if fields.has("grad-accum-dtype")
                else {}
            ),
        }

    def gpus(self) -> int | None:
        """Return the GPUs that train: the actor's, or those of the launcher."""
        if self.kind in ONLINE:
            open_key = "parallelism.data_parallel_size"
            gpus = self.known("actor-num-nodes", 1, open_key) * self.known("actor-num-gpus-per-node", 8, open_key)
            return None if open_key in self.unsaid else gpus
        launcher = self.launcher
        each = number(launcher.get("nproc-per-node") or launcher.get("num-gpus"))
        nodes = number(launcher.get("nnodes") or launcher.get("num-nodes") or "1")
        return None if each is None or nodes is None else each * nodes

    def adapters(self) -> dict[str, Any]:
        """Return the key of ``training`` on adapters."""
        rank = self.known("lora-rank", 0, "training.lora")
        named = self.fields.get("target-modules")
        patterns = named.split() if isinstance(named, str) else None
        return lora(rank, patterns, patterns is None, self.where) if rank else {}

    def rest(self) -> list[str]:
        """Return notes on what the update's prediction leaves out, and record arguments that are refused."""
        unused = self.fields.unused()
        parts = [key for key in unused if PARTS.match(key)]
        self.fields.used |= set(parts)
        self.fields.values = {
            key.replace("-", "_"): value
            for key, value in self.fields.values.items()
            if not (isinstance(value, str) and is_unknown(value))
        }
        self.fields.used = {key.replace("-", "_") for key in self.fields.used}
        what = "what runs beside the update (rollout, reference, critic, rewards)"
        notes = left_out(self.where, [f"--{key.replace('-', '_')}" for key in parts], what)
        return notes + rest(known_keys(KEYS), "OpenRLHF", [self.fields])
