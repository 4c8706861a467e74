"""Every operator: one per file of ``predictor/core/costs/operators``."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from predictor.core.costs import operators
from predictor.core.costs.operator import KERNEL_MARK, Operator, in_kernel


@cache
def catalogue() -> dict[str, Operator]:
    """Return all operators by name, sorted."""
    operators_by_name: dict[str, Operator] = {}
    for module in sorted(iter_modules(operators.__path__), key=lambda info: info.name):
        operator: Operator = import_module(f"{operators.__name__}.{module.name}").OPERATOR
        assert operator.name == module.name, f"{module.name}.py defines {operator.name}"
        operators_by_name[operator.name] = operator
    return operators_by_name


def operator_named(full_name: str) -> Operator:
    """Return an operator by its name; fused attention in one implementation by both: flash_attention-cudnn."""
    name, _, kernel = full_name.partition(KERNEL_MARK)
    return in_kernel(catalogue()[name], kernel)


def families() -> dict[str, list[Operator]]:
    """Return the operators that share a regressor, by the regressor's name."""
    grouped: dict[str, list[Operator]] = {}
    for operator in catalogue().values():
        grouped.setdefault(operator.regressor_name, []).append(operator)
    return grouped
