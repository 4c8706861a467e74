"""A run's whole state, taken from the objects that hold it and put back into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from model_training_framework.trainer.errors import CheckpointError


def gradients_of(module: Any) -> dict[str, Any]:
    """Return this rank's gradients by name of their weight; of a sharded weight its own shard's."""
    grads = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    return {name: grad.to_local() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}


def put_gradients(module: Any, gradients: Mapping[str, Any]) -> None:
    """Put back what ``gradients_of`` gave."""
    for name, weight in module.named_parameters():
        if name not in gradients:
            weight.grad = None
            continue
        grad = gradients[name].to(weight.device)
        if isinstance(weight, DTensor):
            grad = DTensor.from_local(
                grad, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
            )
        weight.grad = grad


def buffers_of(module: Any) -> dict[str, Any]:
    """Return buffers that a rank may have of its own (statistics of the batches that it saw)."""
    return {name: buffer for name, buffer in module.named_buffers() if not isinstance(buffer, DTensor)}


def put_buffers(module: Any, buffers: Mapping[str, Any]) -> None:
    """Put back what ``buffers_of`` gave."""
    for name, buffer in module.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])


def ddp_of(model: Any) -> DistributedDataParallel | None:
    """Return the DDP module in a model as Fabric sets it up; None where there is none."""
    inner = getattr(model, "_forward_module", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def load_weights(module: Any, weights: Mapping[str, Any]) -> None:
    """Load a model's state.

    Raises:
        CheckpointError: it is another model's; the message names what differs first.
    """
    here = module.state_dict()
    for what, names in (("lacks", here.keys() - weights.keys()), ("also has", weights.keys() - here.keys())):
        if names:
            raise CheckpointError(
                f"the checkpoint is of another model: it {what} {min(names)}; "
                "build the same model, or begin in another checkpoint_dir"
            )
    for name, value in weights.items():
        mine = here[name]
        if isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor) and mine.shape != value.shape:
            raise CheckpointError(
                f"the checkpoint is of another model: {name} is {list(value.shape)}, here {list(mine.shape)}; "
                "build the same model, or begin in another checkpoint_dir"
            )
    module.load_state_dict(weights)


def zeros_like_weight(module: Any, optimizer: Any, name: str) -> Any:
    """Return zeros, sharded as they are here, for a sharded tensor of the checkpoint.

    Args:
        module: whose weights, and gradients' states, are sharded.
        optimizer: whose state's tensors have the shape of their weight.
        name: « model.NAME » or « optimizer.state.POSITION.KEY ».

    Raises:
        CheckpointError: there is no such weight.
    """
    kind, _, rest = name.partition(".")
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    try:
        like = module.state_dict()[rest] if kind == "model" else weights[int(rest.split(".")[1])]
    except (KeyError, IndexError) as error:
        raise CheckpointError(f"the checkpoint has {name}, this run has not; build the same model") from error
    return torch.zeros_like(like.detach())
