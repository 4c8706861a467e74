"""Evaluate configurations that are written as Python functions, from their syntax trees: nothing is imported or run.

Constants, assignments, calls of functions in the same source tree with keyword arguments, dataclass and dict literals
and conditions on known values are evaluated. Whatever else a value depends on makes it an ``Unknown`` with its line,
which is a problem only where a reader needs the value.
"""
