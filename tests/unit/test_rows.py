"""A layer is a table of rows: who imports whom, decisions on columns and never on names, and what any row has."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from predictor.core.blocks.ffn import inner_bytes
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.costs.operator import Direction
from predictor.core.folds import kept_bytes, parameters
from predictor.core.rows import Kind, Module, Role, Row
from predictor.core.schema.presets import preset, preset_names
from predictor.core.transforms.lora import Lora
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe, Recompute
from predictor.core.workload.tasks import TRAFFIC, Part
from predictor.core.workload.transformer import Transformer
from tests.layers import rows_of
from tests.unit.core.workload.test_token_mixers import MODEL, run_of
from tests.unit.examples import model_of
from tests.unit.test_structure import PACKAGES, imported_names, relative

CORE = PACKAGES["predictor"] / "core"
BLOCKS, TRANSFORMS, FOLDS = (
    sorted((CORE / "blocks").glob("*.py")),
    sorted((CORE / "transforms").glob("*.py")),
    CORE / "folds.py",
)
BLOCK, TRANSFORM, FOLD = (f"predictor.core.{name}" for name in ("blocks", "transforms", "folds"))


@cache
def models() -> dict[str, Transformer]:
    return {name: model_of(preset(name)) for name in preset_names()}


def preset_runs() -> Iterator[tuple[TrainingRun, LayerKind]]:
    """Yield a run of every preset, split where it can be, with each kind of its layers."""
    for model in models().values():
        run = run_of(model, 2 if model.splits_layers else 1, sequence_parallel=model.splits_layers)
        for kind in model.kinds:
            yield run, kind


@pytest.mark.parametrize(
    ("paths", "above"), [(BLOCKS, (TRANSFORM, FOLD)), (TRANSFORMS, (FOLD,)), ([FOLDS], (BLOCK, TRANSFORM))]
)
def test_blocks_know_no_transform_and_neither_knows_a_fold(paths: list[Path], above: tuple[str, ...]) -> None:
    imports = [
        (name, f"{relative(path)}:{line} imports {name}") for path in paths for name, line in imported_names(path)
    ]
    strays = [where for name, where in imports if name.startswith(above)]
    assert not strays, "\n".join(strays)
    assert len(imports) > 5


def core_imports(start: Path) -> set[str]:
    """Return all modules of the core that a file loads, by way of others too."""
    found: set[str] = set()
    left = [start]
    while left:
        for name, _ in imported_names(left.pop()):
            for module in (name, name.rpartition(".")[0]):
                path = PACKAGES["predictor"].parent / Path(*module.split(".")).with_suffix(".py")
                if path.is_relative_to(CORE) and path.exists() and module not in found:
                    found.add(module)
                    left.append(path)
    return found


@pytest.mark.parametrize("path", [path for path in BLOCKS if path.stem != "__init__"], ids=lambda path: path.stem)
def test_a_block_loads_no_run_transform_or_fold(path: Path) -> None:
    loaded = core_imports(path)
    assert not {name for name in loaded if name.startswith((TRANSFORM, FOLD)) or name == "predictor.core.workload.run"}
    assert "predictor.core.rows" in loaded


@cache
def row_names() -> frozenset[str]:
    """The names of rows of all presets, with adapters and in all variants of their kernels."""
    names = set[str]()
    for run, kind in preset_runs():
        for fused in (False, True):
            model = replace(run.model, fused_side_kernels=fused, fused_rope=fused)
            names |= {row.name for row in rows_of(replace(run, model=model, lora=Lora(16)), kind)}
    return frozenset(names)


def decided_strings(node: ast.AST) -> list[ast.expr]:
    """Return the expressions of a node that something is compared with or looked up in."""
    match node:
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.Set() | ast.List() | ast.Tuple():
            return node.elts
        case ast.Dict():
            return [key for key in node.keys if key is not None]
        case ast.Subscript():
            return [node.slice]
        case ast.MatchValue():
            return [node.value]
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "get" | "count" | "index")):
            return node.args
    return []


def decisions_by_name(source: str, names: frozenset[str]) -> list[str]:
    """Return the places of a module where a row's, a task's or an operator's name may decide.

    A name may be given to a new row, tell tasks apart in a key of several columns, and an operator's may look it up in
    the catalogue.
    """
    tree = ast.parse(source)
    given = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Row":
            given |= {id(argument) for argument in node.args}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            given |= {id(element) for element in node.value.elts}
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "catalogue()":
            given.add(id(node.slice))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "name" and id(node) not in given:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
        found += [
            f"line {string.lineno}: {ast.unparse(node)}"
            for string in decided_strings(node)
            if isinstance(string, ast.Constant) and string.value in {*names, "name"}
        ]
    return found


@pytest.mark.parametrize("path", [*TRANSFORMS, FOLDS], ids=lambda path: path.stem)
def test_no_transform_or_fold_decides_by_a_name(path: Path) -> None:
    found = decisions_by_name(path.read_text(encoding="utf-8"), row_names())
    assert not found, f"{relative(path)} decides by a name; give rows a column:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "kept = [row for row in rows if row.name == other]",
        "if task.name in NAMES: pass",
        "share = SHARES.get(row.name, 0.0)",
        "is_product = row.operator.name != 'gelu'",
        "UP = frozenset({'ffn_up', 'expert_up'})",
        "HALVED = {'bias_additions': 0.5}",
        "is_sum = name.startswith('residual_add')",
        "share = shares['qkv_projection']",
        "name = getattr(row, 'name')\nis_norm = attrgetter('name')(row) == 'rms_norm'",
        "match name:\n    case 'lora_up': pass",
        "label = row.name",
    ],
)
def test_such_a_decision_is_found(source: str) -> None:
    assert decisions_by_name(source, row_names())


@pytest.mark.parametrize(
    "source",
    [
        "key = task.name, task.shape",
        "made = Row(task.name, Module.DISPATCH)",
        "own = catalogue()[row.operator.name]",
        "QKV = 'qkv_projection'",
    ],
)
def test_a_name_may_be_given_on(source: str) -> None:
    assert not decisions_by_name(source, row_names())


def row_faults(row: Row) -> Iterator[str]:
    """Yield what is wrong with a row by itself."""
    if row.weights < 0 or row.multiplications < 0:
        yield "fewer than no weights"
    if row.kind is Kind.PRODUCT and (row.split is None or not row.weights or not row.multiplications):
        yield "a product without a split matrix"
    if row.kind is Kind.PRODUCT and not isclose(sum(row.parts), 1.0):
        yield f"parts of a product are {sum(row.parts)} of it"
    if row.matrix is not None and row.kind is not Kind.PRODUCT:
        yield "a matrix without a product"
    if row.routed and row.module is not Module.EXPERTS:
        yield "weights of routed experts outside of them"
    if any(kept.size_bytes < 0 for kept in row.keeps):
        yield "keeps fewer than no bytes"
    is_traffic = row.kind in (Kind.TRAFFIC, Kind.GATHER, Kind.SUM)
    if is_traffic != (row.part in TRAFFIC) or (is_traffic and (row.weights or row.keeps)):
        yield "traffic is not told apart"
    for one in (row.forward, row.backward):
        if one is not None and (one.times < 0 or one.launches < 0 or min(one.shape, default=0) < 0):
            yield "a pass of fewer than no kernels"


def test_every_row_of_every_preset_is_sound() -> None:
    found, rows = [], 0
    for run, kind in preset_runs():
        for row in rows_of(run, kind):
            rows += 1
            found += [(run.model, kind, row, fault) for fault in row_faults(row)]
    assert not found
    assert rows > 2000
    assert sum(1 for _ in preset_runs()) > 100


def test_every_layer_of_every_preset_has_its_parts() -> None:
    for run, kind in preset_runs():
        rows = rows_of(run, kind)
        modules = {row.module for row in rows}
        assert kind.mixer.is_attention == (Module.CORE in modules)
        assert kind.has_experts == (Module.EXPERTS in modules)
        assert sum(row.kind is Kind.ADDITION for row in rows) == kind.branches
        held = parameters(rows)
        assert held.total == sum(row.weights for row in rows)
        assert bool(held.routed) is kind.has_experts
        assert not held.frozen_dense + held.frozen_routed
        sent = [row for row in rows if row.part is Part.TENSOR_PARALLEL]
        assert bool(sent) is (run.layout.tensor_parallel_size > 1)


def test_frozen_rows_are_all_but_adapters() -> None:
    for run, kind in preset_runs():
        for row in rows_of(replace(run, lora=Lora(16)), kind):
            if row.weights:
                assert row.trains is (row.kind is Kind.ADAPTER), (run.model, row)
        own, adapted = (parameters(rows_of(each, kind)) for each in (run, replace(run, lora=Lora(16))))
        assert own.total == adapted.frozen_dense + adapted.frozen_routed


def test_rows_keep_what_their_layer_keeps() -> None:
    """A Llama layer over two samples of 4,096 tokens, tensor by tensor."""
    rows, stream = rows_of(run_of(MODEL), LayerKind()), 2 * 4096 * 1024 * 2
    kept = {(row.name, each.role): each.size_bytes for row in rows for each in row.keeps if row.kind is not Kind.NORM}
    inner = 2 * 4096 * 2816 * 2
    assert kept == {
        ("qkv_projection", Role.QKV): 3 * stream,
        ("flash_attention", Role.SCORES): 2 * 4096 * 16 * 4,
        ("context_copy", Role.CORE): stream,
        ("ffn_up", Role.INNER): 2 * inner,
        ("swiglu", Role.ACTIVATED): 2 * inner,  # unfused, SiLU's own output as well
    }
    assert inner_bytes(MODEL, 2 * 4096, 2816, 2)[0].size_bytes == 2 * inner
    norms = [each for row in rows if row.kind is Kind.NORM for each in row.keeps]
    assert [(each.role, each.size_bytes) for each in norms] == [(Role.INPUT, stream), (Role.NORMED, stream)] * 2
    assert kept_bytes(rows).total == sum(kept.values()) + 4 * stream


def times_of(rows: Iterable[Row], direction: Direction) -> dict[tuple[object, ...], float]:
    """Return how often each kernel of rows runs."""
    counted: dict[tuple[object, ...], float] = defaultdict(float)
    for row in rows:
        if (task := row.task(direction)) is not None:
            counted[task.name, task.operator.name, task.operator.computed_in, task.shape] += task.times
    return counted


BESIDE: dict[str, dict[str, Any]] = {
    "tokens of experts": {"overlap_expert_parallel": True},
    "adapters": {"overlap_expert_parallel": True, "overlap_tensor_parallel": True, "lora": Lora(16)},
    "sums": {"overlap_tensor_parallel": True, "gemm_recipe": GemmRecipe.MXFP8},
    "compiled sums": {"overlap_tensor_parallel": True, "compiled": True},
    "chunks": {"overlap_linear_traffic": True},
    "compiled chunks": {"overlap_linear_traffic": True, "compiled": True},
    "compiled tokens of experts": {"overlap_expert_parallel": True, "compiled": True},
    "tokens of experts and chunks": {"overlap_expert_parallel": True, "overlap_linear_traffic": True},
}


@pytest.mark.parametrize("settings", BESIDE.values(), ids=BESIDE)
def test_traffic_runs_beside_kernels_of_its_layer(settings: dict[str, Any]) -> None:
    """A row that hides traffic runs in the layer itself, in the same shape and precision, as often or more often."""
    found = 0
    for run, kind in preset_runs():
        layout = replace(run.layout, data_parallel_size=2, expert_parallel_size=1 + kind.has_experts)
        rows = rows_of(replace(run, layout=layout, **settings), kind)
        for direction in Direction:
            own = times_of((row for row in rows if row.behind is None), direction)
            for behind in {id(row.behind): row.behind for row in rows if row.behind and row.task(direction)}.values():
                for key, times in times_of(behind.rows, direction).items():
                    assert times <= own[key] + 1e-12, (key, run.model, kind)
                    found += 1
    assert found > 100


def test_what_pairs_of_a_ring_make_is_added_up_in_fp32() -> None:
    run, kind = next((r, k) for r, k in preset_runs() if r.model.causal and k.mixer is Mixer.FULL and not k.has_experts)
    around = replace(run, layout=replace(run.layout, context_parallel_size=4))
    call = around.layer_call(kind)
    (sums,) = [row for row in rows_of(around, kind) if row.name == "sums_of_pairs"]
    forward, backward = sums.task(Direction.FORWARD), sums.task(Direction.BACKWARD)
    assert forward is not None
    assert backward is not None
    # Of three pairs three quarters of the outputs: 16 bits are read, the sum in fp32 is read and written.
    expected = 3 * 0.75 * call.tokens * call.attention_width * (2 + 4 + 4)
    elements, backwards = (task.times * task.shape[0] * task.shape[1] for task in (forward, backward))
    assert 6 * elements == pytest.approx(expected, rel=1e-6)
    keys_and_values = 2 * call.key_value_heads_per_rank * call.head_dim
    assert backwards / elements == pytest.approx(1.0 + keys_and_values / call.attention_width)
    assert not [row for row in rows_of(run, kind) if row.name == "sums_of_pairs"]


def test_a_compiler_hides_fewer_gathers_and_scatters_backward_and_sums_parts_itself() -> None:
    """torch fuses traffic with products that it feeds first or follows alone; Transformer Engine all but a chunk."""
    run, kind = next((r, k) for r, k in preset_runs() if not k.has_experts and r.sequence_parallel)
    engine, compiler = (
        rows_of(replace(run, overlap_linear_traffic=True, compiled=compiled), kind) for compiled in (False, True)
    )

    def exposed(rows: list[Row], direction: Direction) -> float:
        alone = (row.task(direction) for row in rows if row.behind is None and row.part is Part.TENSOR_PARALLEL)
        return sum(task.times for task in alone if task is not None)

    assert exposed(engine, Direction.FORWARD) == exposed(compiler, Direction.FORWARD) == 0.0
    assert exposed(engine, Direction.BACKWARD) == 0.0
    # Two scatters of gradients of inputs, and two inputs that are gathered again.
    assert exposed(compiler, Direction.BACKWARD) == 4.0
    sums = {row.name for row in compiler} - {row.name for row in engine}
    assert "sum_of_parts" in sums


@pytest.mark.parametrize("recompute", list(Recompute))
def test_recomputation_marks_rows_and_changes_none_of_their_passes(recompute: Recompute) -> None:
    for run, kind in preset_runs():
        plain, marked = (rows_of(replace(run, recompute=each), kind) for each in (Recompute.NONE, recompute))
        assert [(row.forward, row.backward, row.weights) for row in plain] == [
            (row.forward, row.backward, row.weights) for row in marked
        ]
        assert all(0.0 <= row.again <= 1.0 for row in marked)
        assert any(row.again for row in marked) is (
            recompute is not Recompute.NONE and (recompute is not Recompute.SELECTIVE or kind.mixer.is_attention)
        )
