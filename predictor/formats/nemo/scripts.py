"""The recipe of a Python file: what a function returns, or what a script hands to the call that trains."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.nemo.tree import of_value
from predictor.formats.python_source.calls import call, class_defaults, evaluate_call
from predictor.formats.python_source.expressions import evaluate
from predictor.formats.python_source.module import Class, Module
from predictor.formats.python_source.modules import load_module
from predictor.formats.python_source.recipes import chosen, recipes
from predictor.formats.python_source.scope import Scope, Work
from predictor.formats.python_source.statements import run
from predictor.formats.python_source.values import Record, Unknown

STARTS = ("pretrain", "finetune", "train")  # of nemo.collections.llm, with the parts of a run as arguments
RUNS = ("run", "add", "main")  # of NeMo-Run, with a recipe as the first argument
RETURNED = "Partial"


def from_python(path: Path, function: str | None, problems: list[str]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the name of a recipe for messages, its keys, and the defaults of its model's class as far as it is there.

    Raises:
        ConfigError: there is none, or its value cannot be told.
    """
    module = load_module(path)
    if function is not None or recipes(module, RETURNED):
        module, name = chosen(path, function, RETURNED)
        value, raised = evaluate_call(module, name)
        where = f"{path.name}:{name}"
        problems += [f"{where}: {line}" for line in raised if "may change the configuration" not in line]
    else:
        where, value = path.name, _of_script(module)
    if not isinstance(value, Record):
        why = f": {value.why}" if isinstance(value, Unknown) else ""
        raise ConfigError(f"{where} returns no recipe{why}")
    return where, of_value(value), _model_defaults(value)


def _model_defaults(recipe: Record) -> dict[str, Any]:
    """Return the defaults of the class of a model's configuration; none where its code is not in the tree."""
    model = recipe.fields.get("model")
    config = model.fields.get("config") if isinstance(model, Record) else None
    of = config.arguments[0] if isinstance(config, Record) and config.arguments else None
    return {key: of_value(value) for key, value in class_defaults(of).items()} if isinstance(of, Class) else {}


def _of_script(module: Module) -> Any:
    """Return what a script trains, from the statements in front of the call.

    Raises:
        ConfigError: there is no such call.
    """
    tree = ast.parse(module.path.read_text(encoding="utf-8"))
    main = [node.body for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    functions = [node.body for node in tree.body if isinstance(node, ast.FunctionDef)]
    for body in (*main, *functions, tree.body):
        for number, statement in enumerate(body):
            started = _started(statement)
            if started is not None:
                scope = Scope(module, Work(call, frozenset()))
                run(body[:number], scope)
                return _run(started, scope)
    raise ConfigError(f"{module.path.name} has no function that returns a run.Partial, and calls no llm.pretrain(…)")


def _run(started: ast.expr, scope: Scope) -> Any:
    """Return what a call trains; its own code is not run."""
    if isinstance(started, ast.Call) and _called(started) in STARTS:
        parts = {keyword.arg: evaluate(keyword.value, scope) for keyword in started.keywords if keyword.arg}
        return Record("Partial", parts)
    return evaluate(started, scope)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _started(statement: ast.stmt) -> ast.expr | None:
    """Return what a statement starts: the call itself, or the recipe that it hands to NeMo-Run."""
    for node in ast.walk(statement) if isinstance(statement, ast.Expr | ast.Assign | ast.With) else []:
        if not isinstance(node, ast.Call):
            continue
        name = _called(node)
        if name in STARTS and any(keyword.arg == "trainer" for keyword in node.keywords):
            return node
        if name in RUNS and node.args and isinstance(node.args[0], ast.Name | ast.Call):
            return node.args[0]
    return None
