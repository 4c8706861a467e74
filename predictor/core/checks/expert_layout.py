"""Check that experts, and the ranks that hold them, divide."""

from __future__ import annotations

from math import prod

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import must_divide
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection


def check_expert_parallel(model: ModelSection, layout: ParallelismSection) -> None:
    """Refuse expert parallelism that experts or ranks do not divide by.

    Raises:
        ConfigError: they do not, or there are no experts.
    """
    ep, etp = layout.expert_parallel_size, layout.expert_tensor_parallel_size
    if ep == 1 and etp is None:
        return
    if model.moe is None:
        key, value = ("expert_parallel_size", ep) if etp is None else ("expert_tensor_parallel_size", etp)
        raise ConfigError(f"{key} is {value}; the model has no experts (model.moe)")
    must_divide("expert_parallel_size", ep, "num_experts", model.moe.num_experts)
    if ep > 1 and (model.moe.load_imbalance or 1.0) > ep:
        raise ConfigError(
            f"model.moe.load_imbalance is {model.moe.load_imbalance:g}; with expert_parallel_size {ep} no rank can "
            f"have more than {ep} times the mean"
        )
    if etp in (None, layout.tensor_parallel_size):
        _check_unfolded(layout)
    else:
        _check_folded(layout, etp, etp * ep)


def _check_unfolded(layout: ParallelismSection) -> None:
    """Check that expert-parallel ranks are some of those that see other tokens."""
    ep, ranks = layout.expert_parallel_size, layout.data_parallel_size * layout.context_parallel_size
    must_divide("expert_parallel_size", ep, "data_parallel_size × context_parallel_size", ranks)
    inner = next(name for name in layout.rank_order if name in ("cp", "dp"))
    size = layout.context_parallel_size if inner == "cp" else layout.data_parallel_size
    if size % ep and ep % size:
        raise ConfigError(
            f"expert_parallel_size is {ep}; it must divide the innermost of the ranks that see other tokens ({inner}, "
            f"{size}), or be a multiple of it"
        )


def _check_folded(layout: ParallelismSection, etp: int, holding: int) -> None:
    """Check that the ranks that hold all experts once divide those of a stage, in the order in which these lie."""
    sizes = {
        "tp": layout.tensor_parallel_size,
        "cp": layout.context_parallel_size,
        "dp": layout.data_parallel_size,
    }
    key = "expert_tensor_parallel_size × expert_parallel_size"
    must_divide(key, holding, "tensor × context × data parallel size", prod(sizes.values()))
    inside = prod(sizes[name] for name in layout.rank_order[: layout.rank_order.index("pp")])
    nested = all(inside % size == 0 or size % inside == 0 for size in (etp, holding))
    if layout.pipeline_parallel_size > 1 and not nested:
        raise ConfigError(
            f"{key} is {holding}; it must divide the {inside} ranks of a stage that rank_order places side by side, or "
            "be a multiple of them"
        )
