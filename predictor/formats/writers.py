"""Write a configuration as the arguments of a training framework, so that its reader reads the same run back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.blocks.mixers import LayerKind
from predictor.core.plan.loading import in_full, prepare
from predictor.core.schema.inherited_keys import with_files, with_preset
from predictor.core.schema.merging import merged
from predictor.core.schema.sections import RunConfig, validate
from predictor.core.schema.software import said_in_full
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer import Transformer
from predictor.formats import read_any
from predictor.formats.deepspeed import writer as deepspeed
from predictor.formats.gpt_neox import writer as gpt_neox
from predictor.formats.launch_job import launch_job
from predictor.formats.megatron import writer as megatron
from predictor.formats.megatron.releases import releases
from predictor.formats.megatron_bridge import writer as megatron_bridge
from predictor.formats.torchtitan import writer as torchtitan
from predictor.formats.trainer import writer as trainer

__all__ = ["WRITERS", "Writer", "launch_job", "written"]


@dataclass(frozen=True, slots=True)
class Writer:
    """How one framework's arguments are written.

    Attributes:
        label: the framework, as its users write it.
        write: turns a checked configuration, its GPUs, its GPUs per node and a version of the framework into text.
        suffixes: of the file, by version, the oldest first; one without a name where versions are not told apart.
        beside: keys of a configuration that the file has no place for: the framework takes them from elsewhere.
    """

    label: str
    write: Callable[[RunConfig, int, int, str], str]
    suffixes: Mapping[str, str]
    beside: tuple[str, ...] = ()

    def version(self, asked: str | None) -> str:
        """Return a version by the name of one of its releases, such as 0.18 or 0.18.2; the newest without a name.

        Raises:
            ConfigError: it is not known, or versions are not told apart.
        """
        if asked is None:
            return list(self.suffixes)[-1]
        named = re.fullmatch(r"(?:core_)?[vr]?(\d+\.\d+)(?:\.\d+)?", asked.strip())
        if named is None or named[1] not in self.suffixes:
            known = ", ".join(filter(None, self.suffixes)) or "no version in particular"
            raise ConfigError(f"--framework-version is {asked}; arguments of {self.label} are written for {known}")
        return named[1]

    @property
    def suffix(self) -> str:
        """Return the suffix of a file for the newest version."""
        return self.suffixes[self.version(None)]


WRITERS = {
    "megatron": Writer("Megatron-LM", megatron.write, {str(series): ".sh" for series in releases()}),
    "torchtitan": Writer("torchtitan", torchtitan.write, {torchtitan.TOML: ".toml", "0.3": ".py"}),
    "deepspeed": Writer("DeepSpeed", deepspeed.write, {"": ".json"}, beside=deepspeed.BESIDE),
    "megatron-bridge": Writer("Megatron-Bridge", megatron_bridge.write, dict.fromkeys(megatron_bridge.CORES, ".py")),
    "gpt-neox": Writer("GPT-NeoX", gpt_neox.write, {"": ".yml"}),
    "transformers": Writer("a Hugging Face Trainer", trainer.write, {"": ".sh"}),
}


def written(content: dict[str, Any], framework: str, base: Path, version: str | None = None) -> str:
    """Return a configuration as a framework's own arguments; they are read back before they are returned.

    Args:
        content: a full-form configuration.
        framework: megatron, megatron-bridge, torchtitan, deepspeed, gpt-neox or transformers.
        base: folder that paths in the configuration are relative to.
        version: of the framework; the newest that is known without one.

    Raises:
        ConfigError: it has no arguments for the configuration; the message names the keys that would be lost.
    """
    content, _ = in_full(with_files(content, base)[0], base)
    writer, run = WRITERS[framework], prepare(content, base).run
    series = writer.version(version)
    text = writer.write(validate(content), run.layout.num_gpus, run.layout.gpus_per_node, series)
    again = _read_back(text, writer, series, content, run.layout.num_gpus, base)
    lost = _differences(run, again)
    if lost:
        label = f"{writer.label} {series}".strip()
        raise ConfigError(
            f"--write-arguments: {label} has no arguments for {', '.join(lost)}; "
            "--write keeps the layout as a configuration"
        )
    return text


def _read_back(
    text: str, writer: Writer, series: str, content: dict[str, Any], num_gpus: int, base: Path
) -> TrainingRun:
    """Return the run that a framework's arguments describe, on the system of the configuration."""
    replicas = content.get("parallelism", {}).get("data_parallel_size", 1)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"arguments{writer.suffixes[series]}"
        path.write_text(text, encoding="utf-8")
        read = read_any(path, num_gpus, replicas)
    kept: dict[str, Any] = {key: content[key] for key in ("system", "gpu", "cluster", "host") if key in content}
    for key in writer.beside:
        section, _, name = key.partition(".")
        value = content.get(section, {}) if not name else content.get(section, {}).get(name)
        if value is not None:
            kept[section] = value if not name else {**kept.get(section, {}), name: value}
    whole = read.with_derived(with_preset(merged(kept, read.content)))
    return prepare(said_in_full(whole), base).run


def _differences(run: TrainingRun, again: TrainingRun) -> list[str]:
    """Return the names of what differs between two runs, those of the model first.

    Equal chunks are the same split, equal layers the same pattern, whatever its period, modules the same in any order,
    experts that are split as all else is are so whether or not it is said; and switches are the same that act on
    nothing: on tensor-parallel traffic, or on shares of states, where there are none.
    """
    if run.layout.tensor_parallel_size == 1:
        again = replace(again, overlap_tensor_parallel=run.overlap_tensor_parallel)
    if run.layout.data_parallel_size * run.layout.context_parallel_size == 1:
        again = replace(again, zero_stage=run.zero_stage, gradient_reduction=run.gradient_reduction)
    if run.layout.expert_split == again.layout.expert_split:
        split = run.layout.expert_tensor_parallel_size
        again = replace(again, layout=replace(again.layout, expert_tensor_parallel_size=split))
    if set(run.recompute_modules) == set(again.recompute_modules):
        again = replace(again, recompute_modules=run.recompute_modules)
    if run.chunk_layers == again.chunk_layers:
        again = replace(again, layers_per_chunk=run.layers_per_chunk)
    if _kinds(run.model) == _kinds(again.model):
        model = replace(again.model, layer_types=run.model.layer_types, ffn_types=run.model.ffn_types)
        again = replace(again, model=model)
    lost = [f"model.{name}" for name in _unequal(run.model, again.model)] if run.model != again.model else []
    return lost + [name for name in _unequal(run, again) if name != "model"]


def _kinds(model: Transformer) -> list[LayerKind]:
    return [model.kind(layer) for layer in range(model.num_layers)]


def _unequal(first: object, second: object) -> list[str]:
    names = [field.name for field in fields(first)]  # type: ignore[arg-type]
    return [name for name in names if getattr(first, name) != getattr(second, name)]
