"""The key for CUDA graphs: a switch, or the modules of a layer that they hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from predictor.core.workload.run_choices import GraphModule


def _modules(value: object) -> object:
    """Refuse what is neither a switch nor a list of modules; pydantic's message would be two."""
    known = list(GraphModule)
    if isinstance(value, bool) or (isinstance(value, list | tuple) and value and all(name in known for name in value)):
        return value
    raise ValueError(f"expected false, true or a list of modules: {', '.join(known)}")


CudaGraphs = Annotated[bool | tuple[GraphModule, ...], BeforeValidator(_modules)]
