"""Seeded mutations of the predictor's core, one at a time in a copy of the checkout, and the tests that catch them.

A mutation changes one operator, comparison, number or call of min or max. Sites are drawn by a checksum of the
function's name, the line and the change, so code that moves to another file keeps its mutations. ``make mutations``
runs this.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = (
    *(f"predictor/core/{name}/**/*.py" for name in ("blocks", "transforms", "workload", "step", "costs", "timeline")),
    *(f"predictor/core/{name}.py" for name in ("rows", "kernel_rows", "folds")),
)
TEST_S = 900.0  # a mutation that ends no loop is caught by the clock
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
CALLS = {"min": "max", "max": "min"}
# Texts, types and errors: other tests hold them, word by word.
SKIPPED = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a source file, at a byte offset of a line."""

    path: str
    line: int
    start: int
    before: str
    after: str
    key: str

    def apply(self, root: Path) -> str:
        """Change the file below a folder and return the line as it was."""
        lines = (root / self.path).read_bytes().splitlines(keepends=True)
        line = lines[self.line - 1]
        end = self.start + len(self.before.encode())
        assert line[self.start : end] == self.before.encode(), self
        lines[self.line - 1] = line[: self.start] + self.after.encode() + line[end:]
        (root / self.path).write_bytes(b"".join(lines))
        return line.decode().strip()


def _nodes(node: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes that may change, each with the name of its function."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            inner = child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else function
            if inner:
                yield child, inner
            yield from _nodes(child, inner)


def _between(
    left: ast.expr, right: ast.expr, operator: ast.AST, lines: list[bytes]
) -> tuple[int, int, str, str] | None:
    """Return the place and the change of an operator between two operands of one line."""
    if type(operator) not in OPERATORS or left.end_lineno != right.lineno or left.end_col_offset is None:
        return None
    before, after = OPERATORS[type(operator)]
    gap = lines[right.lineno - 1][left.end_col_offset : right.col_offset]
    if gap.strip(b" ()") != before.encode():
        return None
    return right.lineno, left.end_col_offset + gap.index(before.encode()), before, after


def _changes(node: ast.AST, lines: list[bytes]) -> Iterator[tuple[int, int, str, str]]:
    pairs: list[tuple[ast.expr, ast.expr, ast.AST]] = []
    if isinstance(node, ast.BinOp):
        pairs = [(node.left, node.right, node.op)]
    elif isinstance(node, ast.BoolOp):
        pairs = [(node.values[0], node.values[1], node.op)]
    elif isinstance(node, ast.Compare):
        pairs = [(node.left, node.comparators[0], node.ops[0])]
    elif (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS and len(node.args) > 1
    ):
        yield node.func.lineno, node.func.col_offset, node.func.id, CALLS[node.func.id]
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.lineno == node.end_lineno:
        text = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
        yield node.lineno, node.col_offset, text, f"({text} + 1)"
    for pair in pairs:
        if found := _between(*pair, lines):
            yield found


def mutations(root: Path, seed: int) -> list[Mutation]:
    """Return all mutations of the core in the order of their checksums."""
    found = []
    for path in sorted(file for pattern in CORE for file in root.glob(pattern)):
        text = path.read_bytes()
        lines = text.splitlines(keepends=True)
        for node, function in _nodes(ast.parse(text)):
            for line, start, before, after in _changes(node, lines):
                place = f"{seed}|{function}|{lines[line - 1].decode().strip()}|{start}|{before}"
                key = sha256(place.encode()).hexdigest()
                found.append(Mutation(path.relative_to(root).as_posix(), line, start, before, after, key))
    return sorted(found, key=lambda mutation: mutation.key)


def suites(root: Path, path: str) -> list[list[str]]:
    """Return the tests to run one after another: goldens, importers of the module, then all of the predictor's."""
    module = path.removesuffix(".py").replace("/", ".")
    parent, _, name = module.rpartition(".")
    words = (f"from {module} import", f"import {module}", f"from {parent} import {name}")
    near = [file for file in sorted((root / "tests").rglob("test_*.py")) if any(w in file.read_text() for w in words)]
    near = [file for file in near if file.relative_to(root).parts[1] in ("unit", "property", "accuracy")]
    own = [["tests/golden"], [str(file.relative_to(root)) for file in near]]
    return [*filter(None, own), ["tests/property", "tests/unit", "tests/accuracy"]]


def caught(root: Path, tests: Iterable[str]) -> str | None:
    """Return the first test that fails in a copy, None where all pass."""
    source = os.pathsep.join(str(root / folder) for folder in (".", "training", "profiling", "slurm"))
    words = [
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-n",
        "auto",
        "--maxprocesses",
        "4",
        *tests,
    ]
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=root,
            env=os.environ | {"PYTHONPATH": source},
            capture_output=True,
            text=True,
            timeout=TEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end in {TEST_S:.0f} s"
    if done.returncode in (0, 5):
        return None
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"pytest ended with status {done.returncode}: {done.stdout[-200:]!r}"


def copied(folder: Path) -> Path:
    """Return a copy of the checkout's files, with the measurements beside it."""
    copy = folder / "checkout"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    return copy


def main() -> int:
    """Print each mutation with the first test that fails; end with 1 where one is not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first one to run")
    parser.add_argument("--seed", type=int, default=27)
    parser.add_argument("--near", action="store_true", help="run only goldens and tests of the changed module")
    parser.add_argument("--list", action="store_true", help="print the mutations and run nothing")
    asked = parser.parse_args()
    drawn = list(enumerate(mutations(ROOT, asked.seed)[: asked.count]))[asked.first :]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for number, mutation in drawn:
            original = (copy / mutation.path).read_bytes()
            line = mutation.apply(copy)
            print(
                f"{number:2} {mutation.path}:{mutation.line}  {mutation.before} → {mutation.after}  in: {line}",
                flush=True,
            )
            if not asked.list:
                begun = time.monotonic()
                run = suites(copy, mutation.path)[: -1 if asked.near else None]
                by = next(filter(None, (caught(copy, tests) for tests in run)), None)
                print(f"   {f'caught by {by}' if by else 'NOT CAUGHT'}  ({time.monotonic() - begun:.0f} s)", flush=True)
                found += by is not None
            (copy / mutation.path).write_bytes(original)
    if not asked.list:
        print(f"{found} of {len(drawn)} mutations caught")
    return 0 if asked.list or found == len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
