"""The gated delta rule in chunks, of single PyTorch products and a triangular system per chunk."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Shape

DELTA_HEAD, DELTA_CHUNK = 128, 64
# Chunks follow one another, 80 launches each backward: more than these do not fit into a GPU's queue of about 1,022, so
# that the host would be timed and not the kernels. A longer sequence is as many times as long.
DELTA_CHUNKS = 12
RARE = True


def drawn(call: LayerCall) -> Shape:
    """Value heads of 128 as wide together as the hidden dimension. Source: transformers, qwen3_next."""
    heads = max(1, call.hidden_size // DELTA_HEAD // call.tensor_parallel_size)
    length = min(call.sequence_length, DELTA_CHUNKS * DELTA_CHUNK)
    return call.micro_batch_size, length, heads, DELTA_HEAD, DELTA_HEAD, DELTA_CHUNK


def _chunk(
    queries: Tensor, keys: Tensor, values: Tensor, total: Tensor, strength: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs of one chunk, and the state behind it.

    A token corrects what the decayed state says of its key by its strength; the corrections of a chunk depend on its
    earlier ones, a triangular system. Source: Yang et al. 2024, arXiv:2412.06464, section 3.3.

    Args:
        queries: (batch, heads, chunk, key width).
        keys: as queries.
        values: (batch, heads, chunk, value width).
        total: logs of the decays, added up from the chunk's start, (batch, heads, chunk).
        strength: of each token, (batch, heads, chunk).
        state: (batch, heads, key width, value width).
    """
    import torch

    decay = total.exp().unsqueeze(-1)
    later = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device).triu(1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()
    system = (strength.unsqueeze(-1) * between * (keys @ keys.mT)).tril(-1)
    wanted = strength.unsqueeze(-1) * (values - decay * (keys @ state))
    solved = torch.linalg.solve_triangular(system.float(), wanted.float(), upper=False, unitriangular=True)
    corrections = solved.to(values.dtype)
    outputs = decay * (queries @ state) + (between * (queries @ keys.mT)) @ corrections
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)
    return outputs, state * decay[..., -1:, :] + (keys * to_end).mT @ corrections


def rule(queries: Tensor, keys: Tensor, values: Tensor, log_decay: Tensor, strength: Tensor, chunk: int) -> Tensor:
    """Return the outputs, (batch, length, heads, value width); only the triangular systems are solved in fp32.

    Args:
        queries: (batch, length, heads, key width).
        keys: as queries, of length one.
        values: (batch, length, heads, value width).
        log_decay: (batch, length, heads), not positive.
        strength: (batch, length, heads), between 0 and 1.
        chunk: tokens that are computed at once.
    """
    import torch

    queries, keys, values, log_decay, strength = (t.movedim(2, 1) for t in (queries, keys, values, log_decay, strength))
    state = values.new_zeros(*values.shape[:2], keys.shape[-1], values.shape[-1])
    outputs = []
    for start in range(0, values.shape[2], chunk):
        part = slice(start, start + chunk)
        inputs = queries[:, :, part], keys[:, :, part], values[:, :, part]
        output, state = _chunk(*inputs, log_decay[:, :, part].cumsum(-1), strength[:, :, part], state)
        outputs.append(output)
    return torch.cat(outputs, 2).movedim(1, 2)


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence, heads, key_dim, value_dim, chunk)."""
    from torch.nn.functional import normalize

    batch, length, heads, key_dim, value_dim, chunk = shape
    queries, keys = (make.activation(batch, length, heads, key_dim) for _ in range(2))
    values = make.activation(batch, length, heads, value_dim)
    log_decay = (-make.constant(batch, length, heads).abs()).requires_grad_()
    strength = make.constant(batch, length, heads).sigmoid().requires_grad_()

    def forward() -> Tensor:
        return rule(normalize(queries, dim=-1), normalize(keys, dim=-1), values, log_decay, strength, chunk)

    return Call(forward, (queries, keys, values, log_decay, strength), "torch: products and a solve per chunk")
