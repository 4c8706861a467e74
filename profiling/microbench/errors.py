"""Errors of a measurement. Each message is one line: the problem, its place and the remedy."""

from __future__ import annotations


class MeasureError(ValueError):
    """Bad input, a missing tool or device, or a results folder that cannot be used; the command exits with 2."""


class TableError(MeasureError):
    """A measurement table that cannot be read or continued; the message names the file and the reason."""
