"""A configuration of NeMo 2 as nested keys: what NeMo-Run's objects hold, in Python or as YAML writes them."""

from __future__ import annotations

from typing import Any

from predictor.core.schema.merging import merged
from predictor.formats.python_source.calls import ADDED
from predictor.formats.python_source.module import Class, Function
from predictor.formats.python_source.values import External, Method, Record, Unknown, is_open

KIND = "_kind"  # class or function of an object, without its module
OWN = (KIND, "_arguments", "_open", "_name")  # of an object itself
RUN = ("Config", "Partial")  # of NeMo-Run, around the class that is meant


def of_value(value: Any) -> Any:
    """Return an evaluated value as keys, lists and constants; what cannot be told stays unknown."""
    if isinstance(value, Record):
        return _of_record(value)
    if isinstance(value, dict):
        return {str(key): of_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [of_value(item) for item in value]
    if isinstance(value, External):
        return value.name
    if isinstance(value, Class | Function):
        return value.node.name
    return Unknown(f"{value.name} is not set in the code") if isinstance(value, Method) else value


def _of_record(record: Record) -> Any:
    if record.short_kind in RUN and record.arguments:
        kind = of_value(record.arguments[0])
        kind = kind if isinstance(kind, str) else ""
    else:
        kind = record.short_kind
    keys = {key: of_value(item) for key, item in record.fields.items()}
    own = {KIND: kind.rpartition(".")[2], **keys}
    if record.short_kind not in RUN and record.arguments:
        own["_arguments"] = [of_value(item) for item in record.arguments]
    if is_open(record):
        own |= {"_open": record.line, "_name": record.kind}
    return own


def of_yaml(value: Any) -> Any:
    """Return NeMo-Run's YAML, whose ``_target_`` names the class of an object, in the same form."""
    if isinstance(value, list):
        return [of_yaml(item) for item in value]
    if not isinstance(value, dict):
        return value
    keys = {str(key): of_yaml(item) for key, item in value.items() if key not in ("_target_", "_partial_", "_call_")}
    target = value.get("_target_") or value.get("_factory_")
    return {KIND: str(target).rpartition(".")[2], **keys} if target else keys


def part(tree: Any, *names: str) -> dict[str, Any]:
    """Return the keys under a path of names; empty where there are none."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def laid(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return an object's keys over those that it started from."""
    return _added(merged(under, _set_keys(over)))


def _added(tree: dict[str, Any]) -> dict[str, Any]:
    """Return keys whose lists have what code added to them."""
    keys = {key: _added(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for key in [key for key in keys if key.endswith(ADDED)]:
        name = key.removesuffix(ADDED)
        keys[name] = [*(keys.get(name) or []), *keys.pop(key)]
    return keys


def _set_keys(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that code sets, without those of the objects that it only reaches through another."""
    return {
        key: _set_keys(value) if isinstance(value, dict) and value.get(KIND) == key else value
        for key, value in tree.items()
        if key not in OWN
    }
