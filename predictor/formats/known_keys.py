"""The keys of a tool in three classes: read, without effect on cost, and refused as they matter and are not modelled.

A key in none of them is refused where its name or its value speaks of cost; otherwise one line of the answer names it,
and ``--strict`` refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import read_valid
from predictor.core.schema.reading import READING
from predictor.formats.fields import Fields

FOLDER = Path(__file__).resolve().parent / "keys"

# Words of names of what changes the cost of a step.
_COST = re.compile(
    r"size|hidden|layers?|heads?|dim(?:ension)?s?|width|depth|experts?|moe|topk|vocab\w*|batch\w*|micro\w*|parallel\w*|"
    r"tp|pp|dp|cp|ep|etp|vpp|fsdp\d?|ddp|hsdp|zero\d?|stages?|shard\w*|replica\w*|world|gpus?|nodes?|devices?|ranks?|nproc|"
    r"precision|dtype|amp|half|mixed|fp\d+\w*|bf16\w*|float\d*|int8|int4|nf4|tf32|quant\w*|\d*bits?|recompute\w*|remat\w*|"
    r"checkpointing|schedule|interleav\w*|chunks?|pipeline|pipe|overlap\w*|prefetch\w*|offload\w*|accumulat\w*|seq\w*|"
    r"length|len|window|packing|packed|pack|rope|rotary|attention|attn|flash\w*|kernels?|fus\w*|compile\w*|graphs?|"
    r"resize\w*|embeddings?|optim|optimizer|q?lora\w*|adapter|peft|dropout|tie|tied|bias|norm|activation|liger\w*|unsloth\w*|deepspeed"
)
# Beginnings of names of what does not, whatever follows.
_COSTLESS = re.compile(
    r"(?:eval|evaluation|val|valid|validation|test|log|logging|logger|wandb|tensorboard|mlflow|comet|swanlab|neptune|"
    r"inference|infer|generation|predict|save|saving|hub|push|lr|learning|warmup|ckpt|profil\w*|debug|preprocess\w*|"
    r"dataset|dataloader|tokenizer|early_stopping|report)(?:_|\.|$)"
)
_COSTLESS_END = re.compile(
    r"(?:^|_)(?:port|host|url|uri|path|dir|folder|file|name|id|interval|timeout|seed|token|tags?|freq)$"
)
_VALUES = re.compile(r"bf16|fp16|fp8|fp32|float\d+|bfloat16|int8|int4|nf4|zero-?\d|fsdp|adam\w*", re.IGNORECASE)
MOST_SHOWN = 40  # keys of one class that a message names
OFF = (None, False, "", "no", "none", "None", "null", "false", "False", 0)


def speaks_of_cost(key: str, value: object) -> bool:
    """Return whether the name or the value of a key that nothing knows speaks of what changes the cost of a step.

    Only what is on does: of a size, a batch, parallelism, a precision, recomputation, a schedule or overlap.
    """
    if _is_off(value):
        return False
    path = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part).replace("-", "_").lower() for part in key.split(".")]
    name = path[-1]
    if any(map(_COSTLESS.match, path)) or _COSTLESS_END.search(name):
        return False
    return any(_COST.fullmatch(word) for word in name.split("_")) or (
        isinstance(value, str) and _VALUES.fullmatch(value) is not None
    )


class KnownKeys(BaseModel):
    """The keys of one format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    irrelevant: frozenset[str] = Field(default=frozenset(), description="without effect on the cost of a step")
    irrelevant_prefixes: tuple[str, ...] = Field(default=(), description="beginnings of further such keys")
    read: frozenset[str] = Field(default=frozenset(), description="what the reader itself uses, where it says so")
    refused: dict[str, str] = Field(default={}, description="not modelled: reason and remedy by key")
    refused_elsewhere: dict[str, str] = Field(
        default={}, description="not modelled where the format's family has no such key: reason and remedy by key"
    )
    noted: dict[str, str] = Field(default={}, description="left out of a prediction: note by key")
    noted_off: dict[str, str] = Field(default={}, description="left out where the value is false: note by key")
    unsupported: dict[str, str] = Field(default={}, description="models that cannot be predicted: reason by name")

    def is_irrelevant(self, key: str) -> bool:
        """Return whether a key changes no cost."""
        return key in self.irrelevant or key.startswith(self.irrelevant_prefixes)


@cache
def known_keys(name: str) -> KnownKeys:
    """Return the known keys of a format."""
    return read_valid(FOLDER / f"{name}.yaml", KnownKeys, ConfigError)


def rest(known: KnownKeys, tool: str, holders: Iterable[Fields], read: Collection[str] = ()) -> list[str]:
    """Return notes on the keys that a reader did not use, and record those that are refused.

    Args:
        known: the tool's keys.
        tool: as messages call it.
        holders: sections of the file; what a reader uses of them it has used by now.
        read: names of sections and of keys that are read elsewhere, with those in front that they stand under.
    """
    notes: list[str] = []
    passed: list[str] = []
    unknown: list[str] = []
    strange: list[tuple[Fields, str]] = []
    where = ""
    for holder in holders:
        where = holder.where
        for key in holder.unused():
            full, value = f"{holder.prefix}{key}".removeprefix("--"), holder.values[key]
            is_off = _is_off(value)
            if full in known.noted:
                notes += [] if is_off else [known.noted[full]]
            elif full in known.noted_off:
                notes += [known.noted_off[full]] if is_off else []
            elif full in known.refused:
                if not is_off:
                    holder.broken(holder.error(key, known.refused[full]))
            elif full in read:
                continue
            elif known.is_irrelevant(full) or value in ([], {}):
                passed.append(holder.written(key))
            elif speaks_of_cost(full, value) or _is_slip(full, known.read) or READING.get().strict:
                strange.append((holder, key))
            else:
                unknown.append(holder.written(key))
    _refuse(strange, known, tool, read)
    return notes + _passed_over(where, unknown, passed)


def _passed_over(where: str, unknown: list[str], known: list[str]) -> list[str]:
    """Return notes on keys without effect: those that nothing knows, and on request those that are known for it."""
    notes = []
    if unknown:
        notes.append(
            f"{where}: not known here, and taken to cost nothing: {_listed(unknown)} (--strict refuses such keys)"
        )
    if known and READING.get().verbose:
        notes.append(f"{where}: passed over, as they change no cost of a step: {', '.join(known)}")
    return notes


def _refuse(strange: list[tuple[Fields, str]], known: KnownKeys, tool: str, read: Collection[str]) -> None:
    """Record keys that nothing knows and that may change cost, by the holder of each; of very many the first."""
    for holder, key in strange[:MOST_SHOWN]:
        usual = sorted({*known.irrelevant, *known.refused, *known.noted, *known.read, *holder.used, *read})
        full = f"{holder.prefix}{key}".removeprefix("--")
        rule = f"of {tool} it is not known here.{nearest(full, usual)} Remove it if it changes no cost"
        holder.broken(holder.error(key, rule))
    if len(strange) > MOST_SHOWN:
        holder, more = strange[-1][0], len(strange) - MOST_SHOWN
        holder.broken(ConfigError(f"{holder.where}: {more:,} further keys of {tool} are not known here"))


def _listed(keys: list[str]) -> str:
    """Return the first of many keys, and how many follow."""
    more = len(keys) - MOST_SHOWN
    return ", ".join(keys[:MOST_SHOWN]) + (f" and {more:,} others" if more > 0 else "")


def _is_slip(key: str, read: Collection[str]) -> bool:
    """Return whether a key is a slip of one that changes cost, such as swiglue."""
    return bool(get_close_matches(key, read, n=1, cutoff=0.9))


def _is_off(value: Any) -> bool:
    """Return whether a value says nothing or switches off; a section is off where its key enabled is false."""
    if isinstance(value, dict):
        return not value.get("enabled", bool(value))
    return not value if isinstance(value, list | tuple) else value in OFF
