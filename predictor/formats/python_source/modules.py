"""Modules of a source tree: their syntax trees, and where their names come from."""

from __future__ import annotations

import ast
from pathlib import Path

from predictor.core.base.errors import ConfigError
from predictor.formats.python_source.module import Class, Function, Import, Module
from predictor.formats.python_source.values import External

LARGEST_BYTES = 2_000_000
DEEPEST_IMPORT = 30


def load_module(path: Path, tree: dict[Path, Module] | None = None) -> Module:
    """Return a module.

    Raises:
        ConfigError: the file is no Python code.
    """
    tree = {} if tree is None else tree
    path = path.resolve()
    if path in tree:
        return tree[path]
    try:
        code = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} is not Python code: {error}") from None
    module = tree[path] = Module(path, tree=tree)
    _collect(module, code.body)
    return module


def _collect(module: Module, statements: list[ast.stmt]) -> None:
    """Take in the names that statements at a module's top define."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            module.definitions[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    module.definitions[target.id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            module.definitions[statement.target.id] = statement.value
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            take_imports(module, statement)
        elif isinstance(statement, ast.If | ast.Try):
            _collect(module, [*statement.body, *statement.orelse])


def take_imports(module: Module, statement: ast.Import | ast.ImportFrom) -> dict[str, Import]:
    """Add what a statement imports to a module, and return it."""
    found = {}
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            found[alias.asname or name] = Import(name, None)
    else:
        source = _absolute(module, statement)
        for alias in statement.names:
            if alias.name == "*":
                module.stars.append(source)
            else:
                found[alias.asname or alias.name] = Import(source, alias.name)
    module.imports |= found
    return found


def _absolute(module: Module, statement: ast.ImportFrom) -> str:
    """Return the dotted name of a module that is named from the importing one; folders stand for a relative one."""
    if not statement.level:
        return statement.module or ""
    folder = module.path.parent
    for _ in range(statement.level - 1):
        folder = folder.parent
    return str(folder / (statement.module or "").replace(".", "/"))


def _file_of(module: Module, name: str) -> Path | None:
    """Return the file of a module, in the source tree of the one that imports it."""
    part = Path(name if name.startswith("/") else name.replace(".", "/"))
    roots = [Path("/")] if part.is_absolute() else list(module.path.parents)
    for root in roots:
        for candidate in (root / part.with_suffix(".py") if part.name else root, root / part / "__init__.py"):
            if candidate.is_file() and candidate.stat().st_size <= LARGEST_BYTES:
                return candidate
    return None


def imported(module: Module, name: str, depth: int = 0) -> Module | Function | Class | External | tuple[Module, str]:
    """Return what an imported name stands for.

    A value that the other module assigns comes as that module and its name there, to be evaluated.
    """
    source = module.imports[name]
    if source.name is None:
        return External(source.module)
    return member(module, source.module, source.name, depth)


def member(
    module: Module, source: str, name: str, depth: int = 0
) -> Module | Function | Class | External | tuple[Module, str]:
    """Return what a name of another module stands for."""
    path = _file_of(module, source)
    outside = External(f"{'' if source.startswith('/') else source}.{name}".lstrip("."))
    if path is None or depth > DEEPEST_IMPORT:
        return outside
    other = load_module(path, module.tree)
    if name in other.definitions:
        node = other.definitions[name]
        if isinstance(node, ast.FunctionDef):
            return Function(node, other)
        return Class(node, other) if isinstance(node, ast.ClassDef) else (other, name)
    if name in other.imports and other.imports[name] != Import(source, name):  # a package that imports from itself
        return imported(other, name, depth + 1)
    below = _file_of(module, f"{source}/{name}" if source.startswith("/") else f"{source}.{name}")
    if below is not None:
        return load_module(below, module.tree)
    for star in other.stars:
        found = member(other, star, name, depth + 1)
        if not isinstance(found, External):
            return found
    return outside
