"""Call functions, classes and methods of evaluated Python code, and Python's own that make values."""

from __future__ import annotations

import ast
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any

from predictor.formats.python_source.expressions import FAULTS, attribute, evaluate
from predictor.formats.python_source.module import Class, Function, Module
from predictor.formats.python_source.modules import load_module
from predictor.formats.python_source.scope import DEEPEST_CALL, Scope, Work, look_up
from predictor.formats.python_source.statements import run
from predictor.formats.python_source.values import External, Method, Record, Unknown, copied, is_open, unknowns

_BUILTINS = {
    function.__name__: function
    for function in (len, min, max, int, float, str, bool, range, list, tuple, dict, set, sorted, any, all, sum, abs)
}
_CONTAINERS = ("len", "list", "tuple", "dict", "range")  # which do not look at what they hold
_METHODS: dict[type, tuple[str, ...]] = {
    str: ("lower", "upper", "replace", "startswith", "endswith", "strip", "split", "join", "removesuffix", "title"),
    list: ("append", "extend", "copy", "index", "count", "insert"),
    tuple: ("index", "count"),
    dict: ("get", "items", "keys", "values", "update", "copy", "pop", "setdefault"),
    set: ("add", "copy"),
}
_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict, "tuple": tuple}
# What is added to a list that an object from elsewhere has stands under its name with this ending.
ADDS, ADDED = ("append", "extend"), ".append"
_COPIES = ("copy.deepcopy", "copy.copy", "dataclasses.replace")


def call(function: Any, arguments: list[Any], keywords: dict[str, Any], node: ast.AST, scope: Scope) -> Any:
    """Return what a call gives; a ``Record`` with its arguments where its code is outside the source tree."""
    line = scope.module.where(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and isinstance(function, Unknown):
        return _builtin(node.func.id, arguments, keywords, node, scope)
    if isinstance(function, Unknown):
        return function
    name = function.node.name if isinstance(function, Function | Class) else ""
    if name in scope.work.external:
        return Record(name, dict(keywords), list(arguments), line, function)
    if isinstance(function, Function):
        return _run(function, arguments, keywords, node, scope)
    if isinstance(function, Class):
        return _instance(function, arguments, keywords, line, scope)
    if isinstance(function, External):
        if function.name in _COPIES and arguments:
            return _replaced(arguments[0], keywords)
        if function.name == "typing.cast" and len(arguments) == 2:
            return arguments[1]
        return Record(function.name, dict(keywords), list(arguments), line)
    if isinstance(function, Method):
        return _method(function, arguments, keywords, node, scope)
    return scope.unknown(node, "what it calls is not a function")


def _replaced(value: Any, keywords: dict[str, Any]) -> Any:
    """Return a copy of an object with some attributes replaced."""
    copy = copied(value)
    if isinstance(copy, Record):
        copy.fields |= keywords
    return copy


def _builtin(name: str, arguments: list[Any], keywords: dict[str, Any], node: ast.Call, scope: Scope) -> Any:
    if name in ("getattr", "hasattr") and len(arguments) >= 2 and isinstance(arguments[1], str):
        found = attribute(arguments[0], arguments[1], node, scope)
        is_set = not isinstance(found, Unknown | Method)
        if name == "hasattr":
            return True if is_set else scope.unknown(node, f"whether there is {arguments[1]} is not known")
        return found if is_set else scope.unknown(node, f"{arguments[1]} is not set in the code")
    if name == "isinstance" and len(arguments) == 2:
        return _is_instance(arguments[0], arguments[1], node, scope)
    if name in ("print", "setattr", "logging"):
        return None
    builtin = _BUILTINS.get(name)
    if (unknown := unknowns(*arguments, *keywords.values())) is not None:
        return unknown
    if builtin is None:
        return scope.unknown(node, f"{name} is not evaluated")
    if name not in _CONTAINERS and is_open([*arguments, *keywords.values()]):
        return scope.unknown(node, f"{ast.unparse(node)[:60]} depends on code that is not evaluated")
    try:
        return builtin(*arguments, **keywords)
    except FAULTS as error:
        return scope.unknown(node, str(error))


def _is_instance(value: Any, kind: Any, node: ast.Call, scope: Scope) -> Any:
    """Return whether a value is of a type; Python's own types, or a class by its name."""
    name = node.args[1].id if isinstance(node.args[1], ast.Name) else ""
    if isinstance(value, Unknown | External | Method):
        return value if isinstance(value, Unknown) else scope.unknown(node, "its type is not known")
    if name in _TYPES:
        return isinstance(value, _TYPES[name])
    known = (
        kind.node.name
        if isinstance(kind, Class)
        else kind.name.rpartition(".")[2]
        if isinstance(kind, External)
        else ""
    )
    if known and isinstance(value, Record):
        return True if value.short_kind == known else scope.unknown(node, f"whether it is a {known} is not known")
    return False if known else scope.unknown(node, "the type is not known")


def _method(method: Method, arguments: list[Any], keywords: dict[str, Any], node: ast.AST, scope: Scope) -> Any:
    of, name = method.of, method.name
    if isinstance(of, Record):
        return Record(f"{of.kind}.{name}", dict(keywords), list(arguments), scope.module.where(node), of)
    if isinstance(of, Method) and name in ADDS and (holder := _made(of.of)) is not None and scope.condition is None:
        added = arguments if name == ADDS[0] else [item for part in arguments for item in part]
        holder.fields[f"{of.name}{ADDED}"] = [*holder.fields.get(f"{of.name}{ADDED}", []), *added]
        return None
    if isinstance(of, Function | Class):
        kind = f"{of.node.name}.{name}"
        return Record(kind, dict(keywords), list(arguments), scope.module.where(node))
    if name not in _METHODS.get(type(of), ()):
        return scope.unknown(node, f"{name} is not evaluated")
    if scope.condition is not None and type(of) in (list, dict, set):
        return scope.unknown(node, scope.condition)
    try:
        found = getattr(of, name)(*arguments, **keywords)
    except FAULTS as error:
        return scope.unknown(node, str(error))
    return list(found) if isinstance(found, ItemsView | KeysView | ValuesView) else found


def _made(value: Any) -> Record | None:
    """Return the object behind attributes that no code here has set, made on the way; None where there is none."""
    if isinstance(value, Record):
        return value
    holder = _made(value.of) if isinstance(value, Method) else None
    made = None if holder is None else holder.fields.setdefault(value.name, Record(value.name))
    return made if isinstance(made, Record) else None


def _run(function: Function, arguments: list[Any], keywords: dict[str, Any], node: ast.AST, scope: Scope) -> Any:
    if scope.depth > DEEPEST_CALL:
        return scope.unknown(node, "calls are nested too deeply")
    names = _bound(function, arguments, keywords, node, scope)
    if isinstance(names, Unknown):
        return names
    returned = run(function.node.body, scope.inner(function.module, names))
    return None if returned is None else returned.value


def _bound(
    function: Function, arguments: list[Any], keywords: dict[str, Any], node: ast.AST, scope: Scope
) -> dict[str, Any] | Unknown:
    """Return the parameters of a call by name, defaults included."""
    expected = function.node.args
    top = Scope(function.module, scope.work, depth=scope.depth + 1)
    positional = [*expected.posonlyargs, *expected.args]
    names: dict[str, Any] = {}
    defaults = dict(zip([part.arg for part in positional[::-1]], expected.defaults[::-1], strict=False))
    defaults |= {
        part.arg: value for part, value in zip(expected.kwonlyargs, expected.kw_defaults, strict=True) if value
    }
    for part, value in zip(positional, arguments, strict=False):
        names[part.arg] = value
    if expected.vararg is not None:
        names[expected.vararg.arg] = tuple(arguments[len(positional) :])
    known = {part.arg for part in (*positional, *expected.kwonlyargs)}
    names |= {key: value for key, value in keywords.items() if key in known}
    if expected.kwarg is not None:
        names[expected.kwarg.arg] = {key: value for key, value in keywords.items() if key not in known}
    for name in known - names.keys():
        if name not in defaults:
            names[name] = scope.unknown(node, f"{function.node.name} needs {name}, which nothing gives")
        else:
            names[name] = evaluate(defaults[name], top)
    return names


def _instance(of: Class, arguments: list[Any], keywords: dict[str, Any], line: str, scope: Scope) -> Record:
    """Return an object of a class in the tree, with the defaults that its body and its bases' give."""
    return Record(of.node.name, {**_defaults(of, scope), **keywords}, list(arguments), line)


def _defaults(of: Class, scope: Scope, depth: int = 0) -> dict[str, Any]:
    top = Scope(of.module, scope.work, depth=scope.depth + 1)
    found: dict[str, Any] = {}
    for base in of.node.bases if depth < DEEPEST_CALL else []:
        parent = evaluate(base, top)
        if isinstance(parent, Class):
            found |= _defaults(parent, scope, depth + 1)
    for statement in of.node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            value = _field_default(evaluate(statement.value, top), scope)
            if not isinstance(value, Unknown):
                found[statement.target.id] = value
    return found


def _field_default(value: Any, scope: Scope) -> Any:
    """Return the default of a dataclass field."""
    if not isinstance(value, Record) or value.short_kind != "field":
        return value
    factory = value.fields.get("default_factory")
    if factory is not None:
        return call(factory, [], {}, ast.Pass(), scope)
    return value.fields.get("default", Unknown(f"{value.line}: a field without a default"))


def class_defaults(of: Class) -> dict[str, Any]:
    """Return the defaults that a class and its bases in the tree give their attributes."""
    return _defaults(of, Scope(of.module, Work(call)))


def evaluate_call(module: Module, name: str, external: frozenset[str] = frozenset()) -> tuple[Any, list[str]]:
    """Return what a function without arguments returns, and what keeps that from being all that it does.

    Args:
        module: where the function is.
        name: of the function.
        external: functions and classes whose calls are kept as they are, even where the tree has their code.
    """
    scope = Scope(module, Work(call, external))
    function = look_up(name, ast.Pass(), scope, evaluate)
    return call(function, [], {}, ast.Pass(), scope), scope.work.raised


__all__ = ["call", "class_defaults", "evaluate_call", "load_module"]
