"""How many files of the product an addition touches: what CONTRIBUTING.md says, held by who names what."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from predictor.core.blocks.mixers import WITH_BLOCKS, Mixer, Mixers
from predictor.core.costs.catalogue import catalogue
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.section import Section
from predictor.core.schema.sections import TrainingSection
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.architecture import Architecture
from predictor.core.workload.layout import Layout, LayoutKeys
from predictor.core.workload.model_keys import ModelKeys
from predictor.core.workload.parallelism_keys import ParallelismKeys
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.training_keys import TrainingKeys
from tests.unit.test_structure import PACKAGES, relative

CORE = PACKAGES["predictor"] / "core"
# Mamba-2 alone may also run beside attention, which has a key and a check of its own.
BESIDE_ATTENTION = {"predictor/core/workload/architecture.py", "predictor/core/checks/layer_checks.py"}
# Schedules that a run has where its file names none, or that frameworks are described by.
DEFAULTS = ("1f1b", "interleaved_1f1b")
# A section, the dataclass that computes with it, and the keys that both inherit.
MIRRORED: tuple[tuple[type[Section], type[Any], type[Any]], ...] = (
    (ModelSection, Architecture, ModelKeys),
    (ParallelismSection, Layout, LayoutKeys),
    (ParallelismSection, TrainingRun, ParallelismKeys),
    (TrainingSection, TrainingRun, TrainingKeys),
)
# Keys in another form than in a file: null and 0, empty patterns, or decided by others.
IN_ANOTHER_FORM: dict[type[Any], set[str]] = {
    Architecture: {
        *("ffn_hidden_size", "num_key_value_heads", "sliding_window", "vocab_size", "rotary_fraction", "rotary_layers"),
        *("num_position_embeddings", "layer_types", "ffn_types", "attention_chunk", "document_tokens"),
    },
    Layout: {"gpus_per_node"},
    TrainingRun: {"layers_per_stage", "num_micro_batches", "schedule", "blocking_transfers", "conditions"},
}


@cache
def names_in(path: Path) -> set[str]:
    """Return the names, attributes and strings of a module, its documentation aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str(name)):
                found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.ImportFrom(module=str(module)):
                found.add(module.rpartition(".")[2])
    return found


def naming(word: str, folder: Path) -> set[str]:
    """Return the modules below a folder that name something."""
    return {relative(path) for path in folder.rglob("*.py") if word in names_in(path)}


@pytest.mark.parametrize("mixer", WITH_BLOCKS)
def test_the_core_names_a_token_mixer_in_its_block_and_in_one_list(mixer: Mixer) -> None:
    sizes = next(field for field in fields(Mixers) if field.name == mixer)
    kind = str(sizes.type).removeprefix("Annotated[").partition(" |")[0]
    found = naming(kind, CORE) | naming(mixer.value, CORE) | naming(mixer.name, CORE)
    own = {f"predictor/core/blocks/{mixer}.py", "predictor/core/blocks/mixers.py"}
    others = found - own - (BESIDE_ATTENTION if mixer is Mixer.MAMBA2 else set())
    # A block may take a neighbour's constants, and an operator may have the mixer's name.
    others = {path for path in others if "/blocks/" not in path and "/operators/" not in path}
    assert not others, f"{mixer} belongs in its block; found in {', '.join(sorted(others))}"
    assert own <= found


def test_every_token_mixer_has_a_file_and_a_list() -> None:
    blocks = {path.stem for path in (CORE / "blocks").glob("*.py")}
    assert {mixer.value for mixer in WITH_BLOCKS} <= blocks
    assert set(Mixer) == {*WITH_BLOCKS, Mixer.NONE} | {mixer for mixer in Mixer if mixer.is_attention}


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in DEFAULTS])
def test_the_core_names_a_schedule_in_one_file(name: str) -> None:
    # Some have a closed form for the search, and frameworks are described by those that they run.
    others = {"predictor/core/timeline/bound.py", "predictor/core/plan/framework_rules.py"}
    assert naming(name, CORE) - others == {"predictor/core/timeline/schedules.py"}


# Each is run in one place, and its name is neither a configuration's word nor another operator's donor.
RUN_IN_ONE_PLACE = (
    *("attention_mask", "batch_norm", "cross_layer", "dot_interaction", "fm_order2", "fused_cross_entropy"),
    *("gated_delta_rule", "kjt_permute", "mla_attention", "mlp_linear", "torch_cross_entropy"),
)
# Names of the documented interface and of other people's tables, and implementations of fused attention.
OTHER_NAMES = {
    "predictor/core/schema/short_names.py",
    *(f"training/fitting/{name}_tables.py" for name in ("public", "training")),
    *("predictor/core/costs/attention_kernels.py", "profiling/microbench/attention.py"),
}
# What runs a layer's listed operators, kinds of attention, the products of a backward pass, and linear layers in turn.
LISTS = {
    "predictor/core/schema/short_names.py": 1,
    "predictor/core/blocks/layer.py": 1,
    "predictor/core/blocks/core.py": 2,
    "predictor/core/costs/operator.py": 1,
    "profiling/microbench/attention.py": 2,
    "profiling/microbench/gradient_shapes.py": 1,
}


@pytest.mark.parametrize("name", RUN_IN_ONE_PLACE)
def test_three_files_name_an_operator(name: str) -> None:
    found = set().union(*(naming(name, PACKAGES[package]) for package in ("predictor", "microbench", "fitting")))
    own = {f"predictor/core/costs/operators/{name}.py", f"profiling/microbench/kernels/{name}.py"}
    others = {path for path in found if "/operators/" not in path and "/kernels/" not in path} - OTHER_NAMES
    assert len(own | others) == 3, f"{name} belongs in its two files and where it runs; found in {sorted(others)}"


def listed_operators(path: Path) -> int:
    """Return how many collections of a module name three operators or more."""
    names, found = catalogue().keys(), 0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                values = items
            case ast.Dict(keys=keys, values=values):
                values = [*filter(None, keys), *values]
            case _:
                continue
        found += len({value.value for value in values if isinstance(value, ast.Constant)} & names) > 2
    return found


def test_no_list_says_again_what_operators_say_themselves() -> None:
    folders = (CORE, PACKAGES["microbench"], PACKAGES["fitting"])
    lists = {relative(path): listed_operators(path) for folder in folders for path in folder.rglob("*.py")}
    words = {"predictor/core/workload/software.py", "profiling/microbench/traced/autocast.py"}  # of other software
    assert {path: count for path, count in lists.items() if count and path not in words} == LISTS


@pytest.mark.parametrize(("section", "computed", "keys"), MIRRORED, ids=lambda shown: shown.__name__)
def test_a_section_and_what_computes_share_their_keys(
    section: type[Section], computed: type[Any], keys: type[Any]
) -> None:
    names = {field.name for field in fields(keys)}
    assert names <= section.model_fields.keys()
    restated = names & {*section.__annotations__, *computed.__annotations__}
    assert not restated, f"{keys.__name__} has {', '.join(restated)} already"
    for name in names:
        assert section.model_fields[name].description, name


@pytest.mark.parametrize("computed", IN_ANOTHER_FORM, ids=lambda shown: shown.__name__)
def test_what_computes_restates_a_key_only_in_another_form(computed: type[Any]) -> None:
    keys = {name for section, *_ in MIRRORED for name in section.model_fields}
    assert keys & computed.__annotations__.keys() == IN_ANOTHER_FORM[computed]


@pytest.mark.parametrize(("title", "count"), [("a token mixer", 3), ("an operator", 1)])
def test_contributors_are_told_as_many_files(title: str, count: int) -> None:
    text = (PACKAGES["predictor"].parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = re.search(rf"## Add {title}\n(.*?)\n## ", text, re.DOTALL)
    assert section is not None
    named = set(re.findall(r"`(predictor/[\w/.]+\.\w+)`", section[1]))
    assert len(named) == count  # examples, and the list of mixers
