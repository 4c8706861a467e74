"""Read a training script of OLMo-core from its syntax tree: nothing of it runs.

Its calls say the run (TransformerConfig, TransformerTrainModuleConfig, a data loader), as far as their arguments are
literals, names of literals or arguments of the script, which have their defaults.
Source of names and defaults: allenai/OLMo-core, src/olmo_core/train/train_module/transformer/config.py,
distributed/parallel/data_parallel.py, nn/transformer/config.py, internal/experiment.py.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import PYTORCH_DDP, TORCH_ATTENTION
from predictor.formats.fsdp_stack import FRAMEWORK, sizes_of
from predictor.formats.hub_section import fsdp, replicas
from predictor.formats.rl.actor import asked
from predictor.formats.shell.words import is_unknown
from predictor.formats.trainer.program import Program, name_of, take_names

MODELS = Path(__file__).parent / "olmo_core_models.yaml"
MODEL, MODULES = "TransformerConfig", ("TransformerTrainModuleConfig", "TransformerPipelineTrainModuleConfig")
LOADERS = ("NumpyDataLoaderConfig", "ComposableDataLoaderConfig", "partial", "main", "build_config")
LENGTHS = ("max_sequence_length", "sequence_length", "effective_sequence_length")
LENGTH = 4096  # internal/experiment.py, build_config
# Vocabularies of its tokenizers, padded to a multiple of 128: data/tokenizer.py.
VOCABULARIES = {"dolma2": 100352, "dolma2_sigdig": 100352, "gpt_neox_olmo_dolma_v1_5": 50304, "gpt2": 50304}
ADAMS = ("AdamConfig", "AdamWConfig", "SkipStepAdamWConfig")
CHECKPOINTED = {"full": 1, "selected_blocks": 1}
OF_NO_SIZE = {"vocab_size", "compile", "dp_config", "init_method", "block_mods", "freeze_params", "use_flash", "dtype"}
OF_NO_SIZE |= {
    "attn_backend",
    "fused_ops",
    "rope_theta",
    "init_seed",
    "ac_config",
    "float8_config",
    "hidden_size_multiple_of",
}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a training script.

    Raises:
        ConfigError: it does not parse, builds no model here, or asks for what is not modelled; the message has a line
            for each problem.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8-sig"))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} is no Python: {error}") from None
    script = _Script(path.name, tree)
    if script.call(*MODULES) is None and script.call("TrainerConfig") is None:
        raise ConfigError(
            f"{path.name} builds no {MODULES[0]}, so it trains nothing by itself; read the script that does, or give "
            "the run as a configuration of its own"
        )
    problems, nothing = Problems(), dict[str, Any]
    model = problems.part(nothing(), script.model)
    training = problems.part(nothing(), script.training)
    parallelism = problems.part(nothing(), script.parallelism, num_gpus)
    problems.check()
    if script.program.guessed:
        shown = ", ".join(f"{name} {value}" for name, value in script.program.guessed.items())
        script.notes.append(f"{path.name}: arguments of the script have their defaults: {shown}")
    content = {"model": model, "parallelism": parallelism, "training": training}
    return asked(Read(content, tuple(script.notes), unsaid=script.unsaid), script.unsaid)


class _Script:
    """A script being read: its calls, and what is said of them so far."""

    def __init__(self, where: str, tree: ast.Module) -> None:
        self.where, self.notes, self.unsaid = where, list[str](), dict[str, str]()
        self.calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.calls.sort(key=lambda call: (call.lineno, call.col_offset))
        self.program = Program(where)
        self.program.defaults["max_sequence_length"] = LENGTH
        take_names(self.program, tree, self.calls)

    def call(self, *names: str) -> ast.Call | None:
        """Return the last call of a name."""
        return next((call for call in reversed(self.calls) if name_of(call) in names), None)

    def keyword(self, call: ast.Call | None, key: str) -> ast.expr | None:
        """Return a keyword of a call; one that is None counts as absent."""
        found = [] if call is None else [keyword.value for keyword in call.keywords if keyword.arg == key]
        return next((node for node in found if not (isinstance(node, ast.Constant) and node.value is None)), None)

    def number(self, call: ast.Call | None, key: str) -> int | None:
        """Return a whole number under a keyword; None where there is none, or only a run knows it."""
        node = self.keyword(call, key)
        value = None if node is None else self.program.value(node)
        return value if type(value) is int else None

    def word(self, call: ast.Call | None, key: str) -> str:
        """Return the last part of a name under a keyword, such as hsdp of DataParallelType.hsdp."""
        node = self.keyword(call, key)
        value = "" if node is None else self.program.value(node)
        shown = str(value) if isinstance(value, str) and not is_unknown(value) else ast.unparse(node) if node else ""
        return shown.rpartition(".")[2].strip("'\"")

    def part(self, call: ast.Call | None, key: str) -> ast.Call | None:
        """Return the call that stands under a keyword, or the one that makes the name there."""
        node = self.keyword(call, key)
        return node if isinstance(node, ast.Call) else None

    @property
    def module(self) -> ast.Call | None:
        """Return the call of the train module; of early releases the trainer's."""
        return self.call(*MODULES) or self.call("TrainerConfig")

    def length(self) -> int:
        """Return the tokens of a sample; a stand-in, after recording it as open, where only a run knows it."""
        of_samples = [
            call
            for call in reversed(self.calls)
            if name_of(call) in (*MODULES, *LOADERS) or "DatasetConfig" in name_of(call)
        ]
        found = [(call, key) for call in of_samples for key in LENGTHS if self.keyword(call, key) is not None]
        known = next((size for call, key in found if (size := self.number(call, key)) is not None), None)
        if known is None and found:
            self.unsaid["model.sequence_length"] = f"{self.where}: its {found[0][1]} comes from outside"
        return LENGTH if known is None else known

    def model(self) -> dict[str, Any]:
        """Return the section ``model``.

        Raises:
            ConfigError: the model has changes that are not read.
        """
        made = self._model_call()
        factory = "" if made is None else name_of(made)
        keys: dict[str, Any] = {"sequence_length": self.length(), "loss": "torch"}
        known = read_mapping(MODELS)
        if factory not in known:
            which = f"the model is {MODEL}.{factory}" if factory else "its model comes from outside"
            hint = f"{nearest(factory, known)} Known: {', '.join(known)}" if factory else ""
            self.unsaid["model.num_layers"] = (
                f"{self.where}: {which}, whose sizes are not known here.{hint}; take a config.json in front "
                f"(from: [config.json, {self.where}]), or"
            )
            return keys
        found = known[factory]
        keys |= sizes_of(found) if isinstance(found, str) else found
        for keyword in [] if made is None else made.keywords:
            if keyword.arg == "n_layers" and (layers := self.number(made, "n_layers")) is not None:
                keys["num_layers"] = layers
            elif keyword.arg not in OF_NO_SIZE and self.keyword(made, str(keyword.arg)) is not None:
                raise ConfigError(
                    f"{self.where}:{keyword.value.lineno}: {keyword.arg} changes the model, which is not read; give "
                    f"its config.json in front (from: [config.json, {self.where}])"
                )
        tokenizers = [name_of(call) for call in self.calls if _is_of(call, "TokenizerConfig")]
        named = tokenizers[-1] if tokenizers else "dolma2"  # the one of internal/experiment.py
        keys["vocab_size"] = VOCABULARIES.get(named, keys.get("vocab_size", VOCABULARIES["dolma2"]))
        return keys

    def training(self) -> dict[str, Any]:
        """Return the section ``training``.

        Raises:
            ConfigError: the optimizer, or products in FP8, are not modelled.
        """
        length, module = self.length(), self.module
        loaders = [call for call in self.calls if name_of(call) in LOADERS]
        total = next((size for call in loaders if (size := self.number(call, "global_batch_size"))), None)
        micro = self.number(module, "rank_microbatch_size")
        keys: dict[str, Any] = {"framework": FRAMEWORK, "precision": self._precision()}
        for key, tokens in (("micro_batch_size", micro), ("global_batch_size", total)):
            if tokens is None or "model.sequence_length" in self.unsaid:
                self.unsaid[f"training.{key}"] = f"{self.where}: the tokens of its batch come from outside"
            else:
                keys[key] = max(1, tokens // length)
        optimizers = [name_of(call) for call in self.calls if name_of(call).endswith(("AdamWConfig", "AdamConfig"))]
        others = {"MuonConfig", "DionConfig", "LionConfig", "SkipStepLionConfig"} & {name_of(c) for c in self.calls}
        if others and not optimizers:
            raise ConfigError(f"{self.where}: {sorted(others)[0]} is not modelled; AdamW is: give training without it")
        low = self.part(module, "float8_config") or self.part(self._model_call(), "float8_config")
        enabled = self.keyword(low, "enabled")
        if enabled is not None and self.program.value(enabled) is not False:
            raise ConfigError(
                f"{self.where}: float8_config is enabled; products in FP8 are not read here: leave it out and set "
                "training.gemm_recipe (fp8_rowwise, fp8_tensorwise)"
            )
        compiles = self.keyword(module, "compile_model") or self.keyword(self._model_call(), "compile")
        keys |= {"compiled": True} if compiles is not None and self.program.value(compiles) is True else {}
        backend = self.word(self._model_call(), "attn_backend")
        keys["attention_kernel"] = backend if backend == "flash_3" else str(TORCH_ATTENTION)
        return keys | self._recompute()

    def _model_call(self) -> ast.Call | None:
        return next((call for call in reversed(self.calls) if _is_of(call, MODEL)), None)

    def _replicas_call(self) -> ast.Call | None:
        return self.call("TransformerDataParallelConfig", "DataParallelConfig")

    def _precision(self) -> str:
        """Return the precision: that of weights as they are gathered, or of torch.autocast."""
        words = (self.word(self._replicas_call(), "param_dtype"), self.word(self.module, "autocast_precision"))
        return "bf16" if "bfloat16" in words else "fp32"

    def _recompute(self) -> dict[str, Any]:
        """Return the keys on recomputation.

        Raises:
            ConfigError: parts of layers are computed again.
        """
        made = self.call("TransformerActivationCheckpointingConfig")
        if made is None:
            return {"recompute": "none"}
        mode = self.word(made, "mode") or "full"
        if mode not in CHECKPOINTED:
            raise ConfigError(
                f"{self.where}:{made.lineno}: ac_config recomputes {mode}; full and selected_blocks are read: set "
                "training.recompute and training.recompute_modules in a configuration of your own"
            )
        every = (self.number(made, "block_interval") or 1) if mode == "selected_blocks" else 1
        return {"recompute": "full", "recompute_stops_early": True} | ({"recompute_every": every} if every > 1 else {})

    def parallelism(self, num_gpus: int | None) -> dict[str, Any]:
        """Return the section ``parallelism``.

        Raises:
            ConfigError: a pipeline, or experts over several GPUs.
        """
        for name, what in (("PipelineParallelConfig", "a pipeline"), ("ExpertParallelConfig", "experts over GPUs")):
            if (made := self.call(f"Transformer{name}", name)) is not None:
                raise ConfigError(f"{self.where}:{made.lineno}: {what} of OLMo-core is not read; remove it")
        degrees = {
            "tensor_parallel_size": self.call("TransformerTensorParallelConfig"),
            "context_parallel_size": next(
                (c for c in self.calls if _is_of(c, "TransformerContextParallelConfig")), None
            ),
        }
        keys: dict[str, Any] = {}
        ranks = 1
        for key, made in degrees.items():
            if made is not None:
                keys[key] = self.number(made, "degree") or 1
                ranks *= keys[key]
        held = self._replicas_call()
        kind = self.word(held, "name") or "ddp"
        keys |= replicas(num_gpus, ranks, self.where, self.unsaid, asked=True)
        mixed = self._precision() != "fp32"
        if kind == "ddp":
            self.notes += [] if held else [f"{self.where}: it names no dp_config, so replicas are DDP's"]
            return keys | PYTORCH_DDP.section("parallelism") | ({"fp32_parameters": True} if mixed else {})
        in_fp32 = self.word(held, "reduce_dtype") != "bfloat16"
        keys |= fsdp(mixed, mixed and in_fp32)
        replicas_of_all = keys.get("data_parallel_size")
        if kind == "hsdp" and replicas_of_all:
            shard, copies = self.number(held, "shard_degree"), self.number(held, "num_replicas")
            size = shard or (replicas_of_all // copies if copies else min(8 // min(ranks, 8), replicas_of_all))
            if not shard and not copies:
                self.notes.append(f"{self.where}: hsdp shards within a node, which is taken to have 8 GPUs")
            keys |= {"zero_group_size": size} if 1 < size < replicas_of_all else {}
        return keys


def _is_of(call: ast.Call, name: str) -> bool:
    """Return whether a call is of a class method, such as TransformerConfig.olmo2_7B."""
    return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == name
