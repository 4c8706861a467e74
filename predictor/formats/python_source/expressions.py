"""Evaluate Python expressions of known values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from predictor.formats.python_source.module import Function, Module
from predictor.formats.python_source.modules import member
from predictor.formats.python_source.scope import Scope, look_up
from predictor.formats.python_source.values import ATOMS, External, Method, Record, Unknown, is_open, truth, unknowns

LARGEST = 100_000  # elements of a list or characters of a text; more is no configuration
_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FAULTS = (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError, AttributeError, OverflowError)


def evaluate(node: ast.expr, scope: Scope) -> Any:
    """Return the value of an expression, an ``Unknown`` where only a run of the code tells it."""
    if scope.is_spent():
        return scope.unknown(node, "the code takes too many steps to evaluate")
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, ATOMS) else scope.unknown(node, "a constant of this kind")
    known = _KINDS.get(type(node))
    if known is None:
        return scope.unknown(node, f"{ast.unparse(node)[:60]} is not evaluated")
    return known(node, scope)


def _name(node: ast.Name, scope: Scope) -> Any:
    return look_up(node.id, node, scope, evaluate)


def _attribute(node: ast.Attribute, scope: Scope) -> Any:
    return attribute(evaluate(node.value, scope), node.attr, node, scope)


def attribute(value: Any, name: str, node: ast.AST, scope: Scope) -> Any:
    """Return an attribute of a value, or a method to call."""
    if isinstance(value, Unknown):
        return value
    if isinstance(value, External):
        return External(f"{value.name}.{name}")
    if isinstance(value, Module):
        found = look_up(name, node, Scope(value, scope.work), evaluate)
        return found if not isinstance(found, Unknown) else member(value, str(value.path.parent), name)
    if isinstance(value, Record) and name in value.fields:
        return value.fields[name]
    if isinstance(value, ATOMS) and value is None:
        return scope.unknown(node, f"None has no {name}")
    return Method(value, name)


def _binary(node: ast.BinOp, scope: Scope) -> Any:
    left, right = evaluate(node.left, scope), evaluate(node.right, scope)
    operation = _OPERATIONS.get(type(node.op))
    if (unknown := unknowns(left, right)) is not None:
        return unknown
    if operation is None or _is_too_large(node.op, left, right):
        return scope.unknown(node, f"{ast.unparse(node)[:60]} is not evaluated")
    try:
        return operation(left, right)
    except FAULTS as error:
        return scope.unknown(node, str(error))


def _is_too_large(kind: ast.operator, left: Any, right: Any) -> bool:
    if not isinstance(kind, ast.Mult):
        return False
    sizes = [len(side) if isinstance(side, str | list | tuple) else side for side in (left, right)]
    is_repeated = any(isinstance(side, str | list | tuple) for side in (left, right))
    return is_repeated and isinstance(sizes[0], int) and isinstance(sizes[1], int) and sizes[0] * sizes[1] > LARGEST


def _unary(node: ast.UnaryOp, scope: Scope) -> Any:
    value = evaluate(node.operand, scope)
    if isinstance(node.op, ast.Not):
        known = truth(value)
        return scope.unknown(node, "not known") if known is None else not known
    if isinstance(value, int | float) and isinstance(node.op, ast.USub):
        return -value
    return value if isinstance(value, Unknown) else scope.unknown(node, "not a number")


def _boolean(node: ast.BoolOp, scope: Scope) -> Any:
    value: Any = None
    unknown: Any = None
    stops = isinstance(node.op, ast.Or)
    for part in node.values:
        value = evaluate(part, scope)
        known = truth(value)
        if known is stops:
            return value if unknown is None or stops else False
        unknown = value if known is None and unknown is None else unknown
    return value if unknown is None else scope.unknown(node, "it depends on what only a run tells")


def _compare(node: ast.Compare, scope: Scope) -> Any:
    left = evaluate(node.left, scope)
    for kind, part in zip(node.ops, node.comparators, strict=True):
        right = evaluate(part, scope)
        value = _compared(kind, left, right, node, scope)
        if value is not True:
            return value
        left = right
    return True


def _compared(kind: ast.cmpop, left: Any, right: Any, node: ast.AST, scope: Scope) -> Any:
    if (unknown := unknowns(left, right)) is not None:
        return unknown
    open_side = is_open(left) or is_open(right)
    if open_side and not _is_settled(kind, left, right):
        return scope.unknown(node, f"{ast.unparse(node)[:60]} depends on code that is not evaluated")
    try:
        if isinstance(kind, ast.Is | ast.IsNot):
            same = left is right if left is None or right is None or isinstance(left, bool) else left == right
            return same if isinstance(kind, ast.Is) else not same
        if isinstance(kind, ast.In | ast.NotIn):
            return (left in right) is isinstance(kind, ast.In)
        return bool(_COMPARISONS[type(kind)](left, right))
    except FAULTS as error:
        return scope.unknown(node, str(error))


def _is_settled(kind: ast.cmpop, left: Any, right: Any) -> bool:
    """Return whether a comparison of what is not known has an outcome even so."""
    if isinstance(kind, ast.Is | ast.IsNot):  # a list or a dict is not None, whatever is in it
        return any(isinstance(side, list | tuple | dict | set) for side in (left, right))
    if isinstance(kind, ast.In | ast.NotIn) and isinstance(right, list | tuple | dict | set):
        return not is_open(left) and left in right
    return isinstance(left, External) and left == right


def _choice(node: ast.IfExp, scope: Scope) -> Any:
    known = truth(evaluate(node.test, scope))
    if known is None:
        return scope.unknown(node, f"{ast.unparse(node.test)[:60]} is not known")
    return evaluate(node.body if known else node.orelse, scope)


def _list(node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
    items: list[Any] = []
    for part in node.elts:
        if isinstance(part, ast.Starred):
            more = evaluate(part.value, scope)
            if not isinstance(more, list | tuple | dict | range):
                return more if isinstance(more, Unknown) else scope.unknown(node, "no list")
            items += list(more)
        else:
            items.append(evaluate(part, scope))
    if isinstance(node, ast.Set):
        return set(items) if all(isinstance(item, ATOMS) for item in items) else scope.unknown(node, "a set")
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _dict(node: ast.Dict, scope: Scope) -> Any:
    items: dict[Any, Any] = {}
    for key, part in zip(node.keys, node.values, strict=True):
        value = evaluate(part, scope)
        if key is None:
            if not isinstance(value, dict):
                return value if isinstance(value, Unknown) else scope.unknown(node, "no dict")
            items |= value
            continue
        name = evaluate(key, scope)
        if isinstance(name, Unknown):
            return name
        try:
            items[name] = value
        except TypeError as error:
            return scope.unknown(node, str(error))
    return items


def _subscript(node: ast.Subscript, scope: Scope) -> Any:
    value = evaluate(node.value, scope)
    if isinstance(node.slice, ast.Slice):
        parts = [None if part is None else evaluate(part, scope) for part in (node.slice.lower, node.slice.upper)]
        index: Any = slice(*parts)
    else:
        index = evaluate(node.slice, scope)
    if (unknown := unknowns(value, index)) is not None:
        return unknown
    try:
        return value[index]
    except FAULTS as error:
        return scope.unknown(node, f"{type(error).__name__}: {error}")


def _text(node: ast.JoinedStr, scope: Scope) -> Any:
    text = ""
    for part in node.values:
        value = evaluate(part.value, scope) if isinstance(part, ast.FormattedValue) else evaluate(part, scope)
        if not isinstance(value, ATOMS):
            return value if isinstance(value, Unknown) else scope.unknown(node, "no text")
        text += str(value)
    return text


def _comprehension(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> Any:
    generator = node.generators[0]
    items = evaluate(generator.iter, scope)
    items = list(items.items()) if isinstance(items, dict) and isinstance(generator.target, ast.Tuple) else items
    if len(node.generators) > 1 or not isinstance(items, list | tuple | range | dict | set):
        return items if isinstance(items, Unknown) else scope.unknown(node, "it is not evaluated")
    found: list[Any] = []
    for item in items:
        inner = Scope(scope.module, scope.work, dict(scope.names), scope.depth, scope.condition)
        bind(generator.target, item, inner)
        known = [truth(evaluate(test, inner)) for test in generator.ifs]
        if None in known:
            return scope.unknown(node, "which elements it keeps is not known")
        if all(known):
            parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            found.append([evaluate(part, inner) for part in parts])
    try:
        if isinstance(node, ast.DictComp):
            return dict(found)
        values = [value for (value,) in found]
        return set(values) if isinstance(node, ast.SetComp) else values
    except FAULTS as error:
        return scope.unknown(node, str(error))


def bind(target: ast.expr, value: Any, scope: Scope) -> None:
    """Give a name, or several of a tuple, its value."""
    if isinstance(target, ast.Name):
        scope.names[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        is_list = isinstance(value, list | tuple) and len(value) == len(target.elts)
        for number, part in enumerate(target.elts):
            bind(part, value[number] if is_list else scope.unknown(target, "its parts are not known"), scope)


def _call(node: ast.Call, scope: Scope) -> Any:
    function = evaluate(node.func, scope)
    arguments: list[Any] = []
    for part in node.args:
        if isinstance(part, ast.Starred):
            more = evaluate(part.value, scope)
            arguments += (
                more if isinstance(more, list | tuple) else [scope.unknown(node, "its arguments are not known")]
            )
        else:
            arguments.append(evaluate(part, scope))
    keywords: dict[str, Any] = {}
    for keyword in node.keywords:
        value = evaluate(keyword.value, scope)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, dict):
            keywords |= value
        else:
            return scope.unknown(node, "its keyword arguments are not known")
    return scope.work.call(function, arguments, keywords, node, scope)


def _lambda(node: ast.Lambda, scope: Scope) -> Any:
    body = ast.Return(value=node.body)
    function = ast.FunctionDef(name="lambda", args=node.args, body=[body], decorator_list=[])
    return Function(ast.copy_location(function, node), scope.module)


_KINDS: dict[type, Callable[[Any, Scope], Any]] = {
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _choice,
    ast.List: _list,
    ast.Tuple: _list,
    ast.Set: _list,
    ast.Dict: _dict,
    ast.Subscript: _subscript,
    ast.JoinedStr: _text,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.Call: _call,
    ast.Lambda: _lambda,
}
