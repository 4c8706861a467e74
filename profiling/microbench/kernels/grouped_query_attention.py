"""Attention whose query heads share key-value heads or see a window of keys: flash-attn where it runs, else torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from microbench.attention import TORCH, packaged_function, recorded, torch_backend
from microbench.call import Call, Maker, Tensor
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Shape
from predictor.core.costs.operators.grouped_query_attention import OPERATOR

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def window_mask(length: int, window: int, device: str) -> Tensor:
    """Return True where a query sees a key, (length, length): itself and the window - 1 tokens before it."""
    import torch

    return torch.ones(length, length, device=device, dtype=torch.bool).tril_().triu_(1 - window)


def _torch_attention(group: int, causal: bool, mask: Tensor | None, make: Maker) -> tuple[Attention, str]:
    """Return attention over (batch, heads, length, width) and which kernel it is; each backend or an error, no other.

    Args:
        group: query heads that share a key-value head.
        causal: where there is no mask.
        mask: of a window, causal by itself.
        make: of the inputs.

    Raises:
        ValueError: a window in an implementation that torch has no window for.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    if mask is None or make.device == "cpu":
        backend, name = torch_backend(make)

        def grouped(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(
                    queries, keys, values, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=group > 1
                )

        return grouped, recorded(make, name + (", window as a mask" if mask is not None else ""))
    if make.attention_kernel:
        raise ValueError(f"a window: torch's {make.attention_kernel} backend has none")

    # On a GPU the flash backend takes no mask, and the one that does takes no fewer key-value heads.
    def repeated(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys, values = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (keys, values))
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    return repeated, f"{TORCH}, memory-efficient backend, key-value heads repeated, window as a mask"


def drawn(call: LayerCall) -> Shape | None:
    """Return the shape in a layer of a sweep; None where its heads share nothing and see all: flash attention runs."""
    shared = call.key_value_heads_per_rank < call.heads_per_rank
    return OPERATOR.shape_in(call) if shared or 0 < call.window < call.sequence_per_rank else None


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence, heads, kv_heads, head_dim, causal, window); a window of 0 is none.

    Raises:
        ValueError: kv_heads does not divide heads, or a window without causal.
    """
    batch, length, heads, kv_heads, width, causal, window = shape
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"kv_heads is {kv_heads}; it must divide heads, {heads}")
    if window and not causal:
        raise ValueError(f"window is {window} without causal; a window is of the tokens before a query")
    inputs = tuple(make.activation(batch, length, count, width) for count in (heads, kv_heads, kv_heads))
    window = window if window < length else 0
    packaged = packaged_function(make)
    if packaged is not None:
        sees = (window - 1, 0) if window else (-1, -1)
        attend = partial(packaged, causal=bool(causal), window_size=sees)
        return Call(lambda: attend(*inputs), inputs, recorded(make, "flash-attn"))
    mask = window_mask(length, window, make.device) if window else None
    attention, kernel = _torch_attention(heads // kv_heads, bool(causal), mask, make)
    by_head = tuple(x.transpose(1, 2) for x in inputs)
    return Call(lambda: attention(*by_head), inputs, kernel)
