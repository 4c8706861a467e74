"""Keys of a batch in another order of features: FBGEMM's kernel where it is installed, as TorchRec runs it."""

from __future__ import annotations

from collections.abc import Callable

from microbench.call import Call, Maker, Tensor
from microbench.engines import load_engine
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape

ENGINE = "fbgemm_gpu"


def has_fbgemm(make: Maker) -> bool:
    """Return whether FBGEMM is installed with kernels for the device; EngineError where it does not load."""
    import torch

    if not load_engine(ENGINE):
        return False
    kind = "CPU" if make.device == "cpu" else "CUDA"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("fbgemm::permute_2D_sparse_data", kind))


def by_parts(values: Tensor, lengths: Tensor, order: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    """Return the call that copies each feature's run of keys to its new place."""
    import torch

    places = order.tolist()
    per_feature = lengths.sum(dim=1).tolist()

    def forward() -> tuple[Tensor, Tensor]:
        parts = values.split(per_feature)
        return lengths.index_select(0, order), torch.cat([parts[place] for place in places])

    return forward


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return call.slots, call.lookups


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (features, lookups): a key per feature and sample, the first samples one more or less.

    Raises:
        ValueError: fewer keys than features.
    """
    import torch

    features, lookups = shape
    if not 1 <= features <= lookups:
        raise ValueError(f"features is {features}; {lookups} keys are of 1 to {lookups} features")
    samples = lookups // features
    lengths = torch.ones(features, samples, dtype=torch.int32, device=make.device)
    lengths[:, 0] += torch.arange(features, device=make.device) < lookups - features * samples
    values = make.ids(lookups, lookups)
    order = torch.arange(features - 1, -1, -1, device=make.device, dtype=torch.int32)
    if not has_fbgemm(make):
        return Call(by_parts(values, lengths, order), (), "torch cat of the features' keys")
    permute = torch.ops.fbgemm.permute_2D_sparse_data
    return Call(lambda: permute(order, lengths, values, None, lookups)[:2], (), "fbgemm permute_2D_sparse_data")
