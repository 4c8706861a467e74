"""Model and optimizer states of ranks: saved by each, put back, gathered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from llm_trainer.parallel.gradients import local
from llm_trainer.parallel.mesh import DATA, PIPELINE, TENSOR

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from llm_trainer.models import TransformerLM


def broadcast_weights(model: nn.Module, device: torch.device) -> None:
    """Give every rank rank 0's weights and buffers, one at a time over a device."""
    for tensor in [*model.parameters(), *model.buffers()]:
        staged = tensor.detach().to(device)
        distributed.broadcast(staged, 0)
        tensor.detach().copy_(staged)


def local_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's parts of a model's state."""
    return {name: local(tensor).detach() for name, tensor in state.items()}


def split_state(parts: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parts that ``local_state`` gave as tensors split like others of their names."""
    state = {}
    for name, part in parts.items():
        whole = like.get(name)
        if isinstance(whole, DTensor):
            part = DTensor.from_local(
                part.to(whole.device), whole.device_mesh, whole.placements, run_check=False, shape=whole.shape,
                stride=whole.stride(),
            )  # fmt: skip
        state[name] = part
    return state


def whole_weights(stages: Iterable[TransformerLM], mesh: DeviceMesh, group: Any) -> dict[str, Tensor]:
    """Return the whole model's weights by their names, on rank 0's host; empty on the other ranks.

    Tensors that are split over ranks are gathered one at a time; all ranks call it together.

    Args:
        stages: of this rank.
        mesh: of all ranks.
        group: all ranks on their hosts.
    """
    weights: dict[str, Tensor] = {}
    is_first = mesh[DATA].get_local_rank() == 0 and mesh[TENSOR].get_local_rank() == 0
    for stage in stages:
        for name, tensor in stage.state_dict().items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if is_first:
                weights[name] = whole.detach().cpu()
    if mesh[PIPELINE].size() == 1:
        return weights
    gathered: list[Any] | None = [None] * mesh.size() if distributed.get_rank() == 0 else None
    distributed.gather_object(weights, gathered, 0, group=group)
    return {name: tensor for part in gathered or () for name, tensor in part.items()}
