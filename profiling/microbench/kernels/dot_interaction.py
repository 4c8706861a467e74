"""Products of all pairs of a sample's vectors beside the first vector, forward and backward as the trainer has them."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return call.batch_size, 1 + call.slots, call.width


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, features, width)."""
    import torch
    from torch.nn.functional import pad

    batch, features, width = shape
    dense, others = make.constant(batch, width), make.constant(batch, features - 1, width)
    rows, columns = (torch.tril_indices(features, features, offset=-1, device=make.device)).unbind()
    pairs = features * (features - 1) // 2
    spread = torch.full((features, features), pairs, device=make.device)
    spread[rows, columns] = spread[columns, rows] = torch.arange(pairs, device=make.device)
    below, spread = rows * features + columns, spread.flatten()
    vectors = torch.cat((dense.unsqueeze(1), others), dim=1)
    gradient = make.constant(batch, width + pairs)

    def forward() -> Tensor:
        every = torch.cat((dense.unsqueeze(1), others), dim=1)
        products = torch.bmm(every, every.transpose(1, 2)).view(batch, -1).index_select(1, below)
        return torch.cat((dense, products), dim=1)

    def backward() -> tuple[Tensor, Tensor]:
        by_pair = pad(gradient[:, width:], (0, 1)).index_select(1, spread)
        moved = torch.bmm(by_pair.view(batch, features, features), vectors)
        return moved[:, 0] + gradient[:, :width], moved[:, 1:]

    return Call(forward, (), "torch cat, bmm and index_select", backward=backward)
