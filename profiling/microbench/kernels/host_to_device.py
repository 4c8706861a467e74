"""Copy of a batch to the device, from pinned memory where the device is a GPU."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.recommender_call import DENSE_FEATURES, NUMBER_BYTES, RecommenderCall
from predictor.core.costs.operator import Shape


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    per_sample = (1 + DENSE_FEATURES) * NUMBER_BYTES + call.slots * call.hotness * call.key_bytes
    return (call.batch_size * per_sample,)


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (size_bytes,)."""
    import torch

    batch = torch.zeros(*shape, dtype=torch.uint8)
    on_device = torch.zeros(*shape, dtype=torch.uint8, device=make.device)
    if on_device.device.type == "cuda":
        batch = batch.pin_memory()
    return Call(lambda: on_device.copy_(batch, non_blocking=True), (), "torch copy from the host")
