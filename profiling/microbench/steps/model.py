"""A decoder in plain torch, of the sizes and switches of the predictor's own ``Transformer``, on one device.

Activations are (tokens, hidden), so that every matrix product has the shape that its operator has in the tables. A bias
behind attention or FFN is added by itself, as Megatron-LM and GPT-NeoX do and as the predictor counts it; those of the
queries, keys and values and of the FFN's first matrix are part of the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from microbench.call import WEIGHT_SCALE, Tensor
from microbench.kernels.cross_entropy import logits_gradient, losses_and_softmax
from microbench.kernels.rope import BASE
from predictor.core.costs.layer_call import LayerCall
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer import Activation, Biases, Normalization, Transformer


class VocabularyLoss(torch.autograd.Function):  # type: ignore[misc]
    """Cross entropy of fp32 logits (tokens, vocab) and targets (tokens,), per token."""

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor) -> Tensor:
        """Return every token's loss and keep the softmax."""
        losses, softmax = losses_and_softmax(logits, targets)
        context.save_for_backward(softmax, targets)
        return losses

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the logits, in place of the softmax."""
        softmax, targets = context.saved_tensors
        return logits_gradient(softmax, targets, gradient.unsqueeze(-1)), None


EPSILON = 1e-5
Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Weights:
    """Makes parameters on one device; nothing is made on the host and copied."""

    device: str
    dtype: Any

    def matrix(self, rows: int, columns: int) -> Any:
        """Return normal numbers, (rows, columns)."""
        empty = torch.empty(rows, columns, device=self.device, dtype=self.dtype)
        return nn.Parameter(empty.normal_(0.0, WEIGHT_SCALE))

    def vector(self, width: int, value: float) -> Any:
        """Return one number all over, (width,)."""
        return nn.Parameter(torch.full((width,), value, device=self.device, dtype=self.dtype))

    def bias(self, width: int, wanted: bool) -> Any:
        """Return zeros, or None where no bias is wanted."""
        return self.vector(width, 0.0) if wanted else None


class Norm(nn.Module):  # type: ignore[misc]
    """The norm of a layer and of the output; RMSNorm as one kernel, or as single operations like its table."""

    def __init__(self, model: Transformer, make: Weights) -> None:
        """Start as the identity but for the scale."""
        super().__init__()
        self.form = model.normalization
        self.sizes = (model.hidden_size,)
        self.weight = make.vector(model.hidden_size, 1.0)
        self.bias = make.bias(model.hidden_size, self.form is Normalization.LAYER_NORM)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (tokens, hidden)."""
        if self.form is Normalization.LAYER_NORM:
            return functional.layer_norm(x, self.sizes, self.weight, self.bias, EPSILON)
        if self.form is Normalization.FUSED_RMS_NORM:
            return functional.rms_norm(x, self.sizes, self.weight, EPSILON)
        return self.weight * (x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt())


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate (batch, length, heads, width) as single operations, like its table."""
    cosine, sine = rotation
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


def make_rotation(length: int, width: int, device: str, dtype: Any) -> Rotation:
    """Return cosine and sine of every position's angles, (length, 1, width)."""
    half = width // 2
    frequency = BASE ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None, None] * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Projections and the attention between them; which backend of torch computes it is the caller's context."""

    def __init__(self, model: Transformer, call: LayerCall, make: Weights) -> None:
        """Make the two projections."""
        super().__init__()
        self.heads = (model.num_attention_heads, model.key_value_heads, model.key_value_heads)
        self.is_grouped = model.key_value_heads < model.num_attention_heads
        self.sizes = (call.micro_batch_size, call.sequence_length)
        self.qkv = make.matrix(call.qkv_width, model.hidden_size)
        self.qkv_bias = make.bias(call.qkv_width, model.biases is not Biases.NONE)
        self.output = make.matrix(model.hidden_size, call.attention_width)
        self.output_bias = make.bias(model.hidden_size, model.biases is Biases.ALL)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Return attention's output, (tokens, hidden)."""
        projected = functional.linear(x, self.qkv, self.qkv_bias)
        queries, keys, values = projected.view(*self.sizes, sum(self.heads), -1).split(self.heads, dim=2)
        if rotation is not None:
            queries, keys = rotated(queries, rotation), rotated(keys, rotation)
        by_head = (part.transpose(1, 2) for part in (queries, keys, values))
        context = functional.scaled_dot_product_attention(*by_head, is_causal=True, enable_gqa=self.is_grouped)
        y = functional.linear(context.transpose(1, 2).reshape(x.shape[0], -1), self.output)
        return y if self.output_bias is None else y + self.output_bias


class FeedForward(nn.Module):  # type: ignore[misc]
    """Two matrices around GELU, or three around SwiGLU, the first two as one product."""

    def __init__(self, model: Transformer, make: Weights) -> None:
        """Make the matrices."""
        super().__init__()
        self.is_gated = model.activation is Activation.SWIGLU
        width, has_biases = model.ffn_hidden_size * (2 if self.is_gated else 1), model.biases is Biases.ALL
        self.up = make.matrix(width, model.hidden_size)
        self.up_bias = make.bias(width, has_biases)
        self.down = make.matrix(model.hidden_size, model.ffn_hidden_size)
        self.down_bias = make.bias(model.hidden_size, has_biases)

    def forward(self, x: Tensor) -> Tensor:
        """Return the FFN's output, (tokens, hidden)."""
        inner = functional.linear(x, self.up, self.up_bias)
        if self.is_gated:
            gate, value = inner.chunk(2, dim=-1)
            inner = functional.silu(gate) * value
        else:
            inner = functional.gelu(inner)
        y = functional.linear(inner, self.down)
        return y if self.down_bias is None else y + self.down_bias


class Layer(nn.Module):  # type: ignore[misc]
    """Norm, attention, sum; norm, FFN, sum."""

    def __init__(self, model: Transformer, call: LayerCall, make: Weights) -> None:
        """Make both norms, attention and FFN."""
        super().__init__()
        self.attention_norm, self.ffn_norm = Norm(model, make), Norm(model, make)
        self.attention = SelfAttention(model, call, make)
        self.ffn = FeedForward(model, make)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Return the residual stream behind the layer, (tokens, hidden)."""
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):  # type: ignore[misc]
    """The whole model, from token ids to the mean loss of one micro-batch."""

    def __init__(self, run: TrainingRun, device: str, dtype: Any) -> None:
        """Make every parameter on the device."""
        super().__init__()
        model, call, make = run.model, run.call(), Weights(device, dtype)
        self.sizes = (call.micro_batch_size, call.sequence_length)
        self.embedding = make.matrix(call.vocab_per_rank, model.hidden_size)
        rows = model.position_parameters() // model.hidden_size
        self.positions = make.matrix(rows, model.hidden_size) if rows else None
        self.rotation = None if rows else make_rotation(call.sequence_length, call.head_dim, device, dtype)
        self.layers = nn.ModuleList(Layer(model, call, make) for _ in range(model.num_layers))
        self.norm = Norm(model, make)
        self.head = self.embedding if model.tied_embeddings else make.matrix(call.vocab_per_rank, model.hidden_size)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the tokens of one micro-batch, (tokens,) each."""
        x = functional.embedding(ids, self.embedding)
        if self.positions is not None:
            x = (x.view(*self.sizes, -1) + self.positions[: self.sizes[1]]).view(x.shape)
        for layer in self.layers:
            x = layer(x, self.rotation)
        # The 16-bit logits are not kept: the loss reads fp32 ones, and their gradient needs neither.
        return VocabularyLoss.apply(functional.linear(self.norm(x), self.head).float(), targets).mean()
