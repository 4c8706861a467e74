"""The scan of a Mamba-2 layer in chunks, of single PyTorch products."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Shape

SCAN_HEAD, SCAN_STATE, SCAN_CHUNK = 64, 128, 256
RARE = True


def drawn(call: LayerCall) -> Shape:
    """An inner width of twice the hidden one in heads of 64, states of 128, one group. Source: state-spaces/mamba."""
    heads = max(1, 2 * call.hidden_size // SCAN_HEAD // call.tensor_parallel_size)
    return call.micro_batch_size, call.sequence_length, heads, SCAN_HEAD, SCAN_STATE, 1, SCAN_CHUNK


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """Return (batch, length, …) as (batch, chunks, chunk, …), padded with zeros."""
    from torch.nn.functional import pad

    missing = -x.shape[1] % chunk
    padded = pad(x, (0, 0) * (x.dim() - 2) + (0, missing)) if missing else x
    return padded.unflatten(1, (-1, chunk))


def scan(x: Tensor, log_decay: Tensor, keys: Tensor, queries: Tensor, chunk: int) -> Tensor:
    """Return y of h ← exp(log_decay) · h + x keysᵀ, y = h queries, per head.

    Args:
        x: (batch, length, heads, width), scaled by its step sizes.
        log_decay: (batch, length, heads), not positive.
        keys: (batch, length, groups, state); heads of a group share them.
        queries: as keys.
        chunk: tokens that are computed at once.
    """
    import torch

    length, heads = x.shape[1], x.shape[2]
    per_group = heads // keys.shape[2]
    x, log_decay, keys, queries = (_in_chunks(t, chunk) for t in (x, log_decay, keys, queries))
    total = log_decay.cumsum(2).movedim(3, 2)  # batch, chunks, heads, chunk
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(
        torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1), float("-inf")
    )
    scores = torch.einsum("bcqgn,bckgn->bcgqk", queries, keys).repeat_interleave(per_group, 2) * between.exp()
    y = torch.einsum("bchqk,bckhp->bcqhp", scores.to(x.dtype), x)
    keys, queries = (t.repeat_interleave(per_group, 3) for t in (keys, queries))
    to_end = (total[..., -1:] - total).exp().movedim(2, 3).unsqueeze(-1)
    states = torch.einsum("bckhn,bckhp->bchpn", keys * to_end.to(keys.dtype), x)
    before, carried = [], torch.zeros_like(states[:, 0])
    for index in range(states.shape[1]):
        before.append(carried)
        carried = carried * total[:, index, :, -1, None, None].exp().to(carried.dtype) + states[:, index]
    earlier = torch.einsum("bcqhn,bchpn->bcqhp", queries, torch.stack(before, 1))
    y = y + earlier * total.exp().movedim(2, 3).unsqueeze(-1).to(y.dtype)
    return y.flatten(1, 2)[:, :length]


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence, heads, head_dim, state, groups, chunk)."""
    batch, length, heads, width, state, groups, chunk = shape
    x = make.activation(batch, length, heads, width)
    keys, queries = (make.activation(batch, length, groups, state) for _ in range(2))
    log_decay = (-make.constant(batch, length, heads).abs()).requires_grad_()

    def forward() -> Tensor:
        return scan(x, log_decay, keys, queries, min(chunk, length))

    return Call(forward, (x, log_decay, keys, queries), "torch: products per chunk")
