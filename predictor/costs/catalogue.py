"""Every operator, found by looking into ``predictor/costs/operators``."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from predictor.costs import operators
from predictor.costs.operator import Operator


@cache
def catalogue() -> dict[str, Operator]:
    """Return all operators by name, sorted."""
    found: dict[str, Operator] = {}
    for module in sorted(iter_modules(operators.__path__), key=lambda info: info.name):
        operator: Operator = import_module(f"{operators.__name__}.{module.name}").OPERATOR
        assert operator.name == module.name, f"{module.name}.py defines {operator.name}"
        found[operator.name] = operator
    return found


def families() -> dict[str, list[Operator]]:
    """Return the operators that share a regressor, by the regressor's name."""
    grouped: dict[str, list[Operator]] = {}
    for operator in catalogue().values():
        grouped.setdefault(operator.regressor_name, []).append(operator)
    return grouped
