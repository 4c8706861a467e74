"""Megatron-LM's functional tests: rows with the exact arguments of a run, read as any file of arguments is.

Source: NVIDIA/Megatron-LM, tests/functional_tests/test_cases (model_config.yaml and golden values of a case).
"""

from __future__ import annotations

import json
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.foreign import readers
from predictor.evidence.published.row import Row, UnexpressedError
from predictor.evidence.published.systems import machine

ON = "true"  # a switch, which takes no value on a command line


def configuration(row: Row) -> dict[str, Any]:
    """Return the configuration that Megatron-LM's arguments of a row stand for, on the row's GPUs.

    Raises:
        UnexpressedError: the reader refuses the arguments, or they leave open what decides the cost.
    """
    given: dict[str, str] = json.loads(row.text("arguments_json") or "{}")
    if not given:
        raise UnexpressedError("arguments of the run are not stated")
    arguments = {name: True if value == ON else value for name, value in given.items()}
    cluster = machine(row)
    try:
        read = readers().read_arguments(arguments, row.text("program"), row.whole("n_gpus"))
    except ConfigError as error:
        head, *problems = str(error).splitlines()  # several problems stand below their number
        raise UnexpressedError(f"Megatron-LM's arguments are refused: {(problems or [head])[0].strip()}") from error
    if read.unsaid:
        raise UnexpressedError(f"Megatron-LM's arguments leave open {', '.join(read.unsaid)}")
    content = {**cluster, **read.content}
    content["parallelism"] = {**content["parallelism"], "gpus_per_node": row.whole("gpus_per_node")}
    return content


def groups(row: Row) -> tuple[str, ...]:
    """Return the groups of a row: by size of the model and GPU, and those with experts."""
    size = "7B and more" if row.has("size_class", "large") else "small steps"
    gpu = row.text("gpu").partition("-")[0]
    return f"Megatron-LM's tests, {size}", f"Megatron-LM's tests, {size}, {gpu}"
