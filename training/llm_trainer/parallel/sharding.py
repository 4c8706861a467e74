"""Data axis: model states sharded over ranks that see different samples (ZeRO).

Rajbhandari et al. 2020, arXiv:1910.02054. Stage 1 is torch's ZeroRedundancyOptimizer beside DistributedDataParallel;
stages 2 and 3 are torch's fully_shard (FSDP2), which gathers the weights of a layer when it computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from llm_trainer.models import TransformerLM


def shard_weights(model: nn.Module, stage: TransformerLM, mesh: DeviceMesh, zero_stage: int) -> None:
    """Shard a model over the ranks of a mesh of one axis: every layer by itself, and what is left.

    Args:
        model: the stage, or a module around it, which is called.
        stage: a model or a pipeline stage.
        mesh: of data ranks.
        zero_stage: 2 keeps gathered weights from the forward pass to the backward pass, 3 gathers them again.
    """
    reshard = zero_stage == 3
    for layer in stage.layers.values():
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    # the last unit of the forward pass is the first of the backward pass: torch's default keeps it gathered
    fully_shard(model, mesh=mesh, reshard_after_forward=None if reshard else False)


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """torch's ZeroRedundancyOptimizer whose state is this rank's share, so that every rank saves its own."""

    def step(self, closure: Any = None, **options: Any) -> Any:
        """Step the weights of this rank, and exchange weights."""
        self._opt_called = True  # what torch's schedulers ask of the optimizer that they were made for
        return super().step(closure, **options)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the weights that this rank updates."""
        _copy_settings(self.param_groups, self.optim.param_groups)  # a scheduler changes this object's alone
        state: dict[str, Any] = self.optim.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave on the same rank."""
        self.optim.load_state_dict(state_dict)
        _copy_settings(self.optim.param_groups, self.param_groups)


def _copy_settings(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
    """Copy the settings of groups of weights, such as their learning rates."""
    for here, there in zip(source, target, strict=True):
        there.update({name: value for name, value in here.items() if name != "params"})


def shard_optimizer(optimizer: Optimizer, group: Any = None) -> ShardedOptimizer:
    """Return an optimizer like a fresh one, with its states shared out over the ranks of a group.

    Args:
        optimizer: gives the class, the weights and the settings of each of their groups.
        group: ranks that hold the same weights; all where None.
    """
    arguments = signature(type(optimizer)).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in arguments}
    return ShardedOptimizer(
        [dict(group) for group in optimizer.param_groups],
        type(optimizer),
        process_group=group,
        parameters_as_bucket_view=True,
        **settings,
    )
