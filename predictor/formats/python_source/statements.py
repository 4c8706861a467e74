"""Run through the statements of a Python function, as far as they set known values."""

from __future__ import annotations

import ast
from typing import Any

from predictor.formats.python_source.expressions import FAULTS, bind, evaluate
from predictor.formats.python_source.module import Function
from predictor.formats.python_source.modules import take_imports
from predictor.formats.python_source.scope import Scope
from predictor.formats.python_source.values import Record, Unknown, is_open, truth

MOST_ROUNDS = 1000


class Returned:
    """The value that a function returns."""

    def __init__(self, value: Any) -> None:
        """Take the value."""
        self.value = value


def run(statements: list[ast.stmt], scope: Scope) -> Returned | None:
    """Run statements in order; return what they return, None where they end without."""
    for statement in statements:
        if scope.is_spent():
            return Returned(scope.unknown(statement, "the code takes too many steps to evaluate"))
        returned = _one(statement, scope)
        if returned is not None:
            if scope.condition is None:
                return returned
            # Whether it returns here is not known: what follows may not run.
            return Returned(scope.unknown(statement, scope.condition))
    return None


def _one(statement: ast.stmt, scope: Scope) -> Returned | None:
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        _assignment(statement, scope)
    elif isinstance(statement, ast.Expr):
        _call_alone(statement, scope)
    elif isinstance(statement, ast.Return):
        return Returned(None if statement.value is None else evaluate(statement.value, scope))
    elif isinstance(statement, ast.If):
        return _if(statement, scope)
    elif isinstance(statement, ast.For):
        return _for(statement, scope)
    elif isinstance(statement, ast.With | ast.Try):
        return run(statement.body, scope)
    elif isinstance(statement, ast.Raise):
        return _raise(statement, scope)
    elif isinstance(statement, ast.FunctionDef):
        scope.names[statement.name] = Function(statement, scope.module)
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        take_imports(scope.module, statement)
    return None


def _call_alone(statement: ast.Expr, scope: Scope) -> None:
    """Evaluate an expression whose value is dropped; a call of code that is not there may change what it is given."""
    value = evaluate(statement.value, scope)
    if not isinstance(value, Record) or not is_open(value) or value.of is not None:
        return
    if any(isinstance(part, Record) for part in (*value.arguments, *value.fields.values())):
        line = f"{scope.module.where(statement)}: {value.kind} may change the configuration"
        scope.work.raised.append(f"{line}; its code is not beside the file")


def _assignment(statement: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
    if isinstance(statement, ast.AugAssign):
        sum_of = ast.BinOp(_loaded(statement.target), statement.op, statement.value)
        assign(statement.target, evaluate(ast.copy_location(sum_of, statement), scope), scope)
    elif statement.value is not None:
        value = evaluate(statement.value, scope)
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            assign(target, value, scope)


def _loaded(target: ast.expr) -> ast.expr:
    """Return the expression that reads what an assignment sets."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _raise(statement: ast.Raise, scope: Scope) -> Returned | None:
    if scope.condition is not None:
        return None  # a check of what is not known, which a run that works passes
    text = ast.unparse(statement)[:120]
    scope.work.raised.append(f"{scope.module.where(statement)}: it raises {text}")
    return Returned(scope.unknown(statement, text))


def _if(statement: ast.If, scope: Scope) -> Returned | None:
    known = truth(evaluate(statement.test, scope))
    if known is not None:
        return run(statement.body if known else statement.orelse, scope)
    if _only_turns_off(statement):
        return run(statement.body, scope)
    outer = scope.condition
    scope.condition = f"it depends on « {ast.unparse(statement.test)[:80]} », which only a run of the code tells"
    returned = [run(branch, scope) for branch in (statement.body, statement.orelse)]
    scope.condition = outer
    both = [value for value in returned if value is not None]
    return both[0] if len(both) == len(returned) else None


def _only_turns_off(statement: ast.If) -> bool:
    """Return whether a condition asks for what is on and turns it off: it is off behind it, whatever it was."""
    tests = statement.test.values if isinstance(statement.test, ast.BoolOp) else [statement.test]
    asked = {ast.unparse(test) for test in tests}
    joined = not isinstance(statement.test, ast.BoolOp) or isinstance(statement.test.op, ast.And)
    return (
        joined
        and not statement.orelse
        and all(
            isinstance(line, ast.Assign)
            and isinstance(line.value, ast.Constant)
            and line.value.value is False
            and {ast.unparse(target) for target in line.targets} <= asked
            for line in statement.body
        )
    )


def _for(statement: ast.For, scope: Scope) -> Returned | None:
    items = evaluate(statement.iter, scope)
    if isinstance(items, dict | set | range):
        items = list(items)
    if not isinstance(items, list | tuple) or len(items) > MOST_ROUNDS:
        outer, scope.condition = scope.condition, "it is set in a loop over what only a run of the code tells"
        bind(statement.target, scope.unknown(statement, scope.condition), scope)
        run(statement.body, scope)
        scope.condition = outer
        return None
    for item in items:
        bind(statement.target, item, scope)
        returned = run(statement.body, scope)
        if returned is not None:
            return returned
    return None


def assign(target: ast.expr, value: Any, scope: Scope) -> None:
    """Give a name, an attribute or an element its value; an unknown one where it is not known whether that happens."""
    if scope.condition is not None and not isinstance(value, Unknown) and not _is_alike(target, value, scope):
        value = scope.unknown(target, scope.condition)
    if isinstance(target, ast.Tuple | ast.List):
        is_list = isinstance(value, list | tuple) and len(value) == len(target.elts)
        for number, part in enumerate(target.elts):
            assign(part, value[number] if is_list else scope.unknown(target, "its parts are not known"), scope)
    elif isinstance(target, ast.Attribute):
        holder = _holder(target.value, scope)
        if isinstance(holder, Record):
            holder.fields[target.attr] = value
    elif isinstance(target, ast.Subscript):
        holder, key = evaluate(target.value, scope), evaluate(target.slice, scope)
        try:
            holder[key] = value
        except FAULTS:
            return
    else:
        bind(target, value, scope)


def _is_alike(target: ast.expr, value: Any, scope: Scope) -> bool:
    """Return whether a target has the value already, so that it does not matter whether it is set."""
    if not isinstance(target, ast.Name | ast.Attribute):
        return False
    old = evaluate(_loaded(target), scope)
    return type(old) is type(value) and bool(old == value)


def _holder(node: ast.expr, scope: Scope) -> Any:
    """Return the object whose attribute is set; those on the way to it that the code has not set so far are made."""
    parent = _holder(node.value, scope) if isinstance(node, ast.Attribute) else None
    if not isinstance(node, ast.Attribute) or not isinstance(parent, Record):
        return evaluate(node, scope)
    return parent.fields.setdefault(node.attr, Record(node.attr, line=scope.module.where(node)))
