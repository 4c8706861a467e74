"""Reference implementation of the training step in fp32, without any of the timed kernels.

Attention is a softmax over masked scores, rotary positions are products of complex numbers, norms, activations,
clipping and AdamW are their formulas, and the loss is torch's own cross entropy. What it shares with the recorded step
are the names of the weights and the layout of queries, keys and values.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch.nn.functional import cross_entropy

from microbench.call import Tensor
from microbench.kernels.gradient_clipping import MAX_NORM
from microbench.kernels.rope import BASE
from microbench.steps.model import EPSILON
from microbench.steps.training import ADAM_EPSILON, BETAS, LEARNING_RATE, WEIGHT_DECAY
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer import Activation, Normalization, Transformer

CLIP_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_
Named = dict[str, Tensor]


def _norm(model: Transformer, weights: Named, name: str, x: Tensor) -> Tensor:
    if model.normalization is Normalization.LAYER_NORM:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + EPSILON)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + EPSILON) * weights[f"{name}.weight"]


def _linear(weights: Named, name: str, x: Tensor) -> Tensor:
    y = x @ weights[name].T
    return y + weights[f"{name}_bias"] if f"{name}_bias" in weights else y


def _rotate(x: Tensor) -> Tensor:
    """Turn pair (i, i + width / 2) of (batch, heads, length, width) by its position's angle."""
    length, width = x.shape[-2:]
    half = width // 2
    places = torch.arange(length, device=x.device, dtype=torch.float32)
    frequency = BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    turn = torch.polar(torch.ones(length, half, device=x.device), torch.outer(places, frequency))
    turned = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * turn
    return torch.cat((turned.real, turned.imag), dim=-1)


def _attention(model: Transformer, weights: Named, name: str, x: Tensor) -> Tensor:
    """Return attention of (batch, length, hidden)."""
    batch, length, _ = x.shape
    heads, shared, width = model.num_attention_heads, model.key_value_heads, model.head_dim
    by_head = _linear(weights, f"{name}.qkv", x).view(batch, length, heads + 2 * shared, width).transpose(1, 2)
    queries, keys, values = by_head[:, :heads], by_head[:, heads : heads + shared], by_head[:, heads + shared :]
    if model.rotary_fraction:
        queries, keys = _rotate(queries), _rotate(keys)
    keys, values = (part.repeat_interleave(heads // shared, dim=1) for part in (keys, values))
    later = torch.ones(length, length, device=x.device, dtype=torch.bool).triu(1)
    scores = (queries @ keys.transpose(-1, -2) / sqrt(width)).masked_fill(later, float("-inf"))
    context = (scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, length, heads * width)
    return _linear(weights, f"{name}.output", context)


def _ffn(model: Transformer, weights: Named, name: str, x: Tensor) -> Tensor:
    inner = _linear(weights, f"{name}.up", x)
    if model.activation is Activation.GELU:
        inner = inner * 0.5 * (1.0 + torch.erf(inner / sqrt(2.0)))
    else:
        gate, value = inner[..., : model.ffn_hidden_size], inner[..., model.ffn_hidden_size :]
        inner = gate * torch.sigmoid(gate) * value
    return _linear(weights, f"{name}.down", inner)


def reference_loss(run: TrainingRun, weights: Named, ids: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of one micro-batch, (tokens,) each."""
    model = run.model
    x = weights["embedding"][ids].view(run.micro_batch_size, model.sequence_length, -1)
    if "positions" in weights:
        x = x + weights["positions"][: model.sequence_length]
    for index in range(model.num_layers):
        name = f"layers.{index}"
        x = x + _attention(model, weights, f"{name}.attention", _norm(model, weights, f"{name}.attention_norm", x))
        x = x + _ffn(model, weights, f"{name}.ffn", _norm(model, weights, f"{name}.ffn_norm", x))
    head = weights["embedding"] if model.tied_embeddings else weights["head"]
    return cross_entropy((_norm(model, weights, "norm", x) @ head.T).flatten(0, 1), targets)


class Reference:
    """Weights in fp32, and the step written out."""

    def __init__(self, run: TrainingRun, weights: Named) -> None:
        """Start from copies of these weights."""
        self._run = run
        self.weights = {name: weight.detach().float().clone().requires_grad_() for name, weight in weights.items()}
        self._first = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self._second = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self._steps = 0

    def accumulate(self, ids: Tensor, targets: Tensor) -> tuple[float, Named]:
        """Return the last micro-batch's loss, and the gradients of the mean over micro-batches (rows of ids)."""
        total = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        for tokens, wanted in zip(ids, targets, strict=True):
            loss = reference_loss(self._run, self.weights, tokens, wanted)
            gradients = torch.autograd.grad(loss / len(ids), list(self.weights.values()))
            for name, gradient in zip(total, gradients, strict=True):
                total[name] += gradient
        return float(loss.detach()), total

    def update(self, gradients: Named) -> Named:
        """Take one AdamW step and return the clipped gradients. Loshchilov and Hutter 2017, arXiv:1711.05101."""
        self._steps += 1
        norm = sqrt(sum(float((gradient.double() ** 2).sum()) for gradient in gradients.values()))
        scale = min(1.0, MAX_NORM / (norm + CLIP_EPSILON))
        clipped = {name: gradient * scale for name, gradient in gradients.items()}
        for name, weight in self.weights.items():
            gradient = clipped[name]
            self._first[name] = BETAS[0] * self._first[name] + (1.0 - BETAS[0]) * gradient
            self._second[name] = BETAS[1] * self._second[name] + (1.0 - BETAS[1]) * gradient**2
            mean = self._first[name] / (1.0 - BETAS[0] ** self._steps)
            square = self._second[name] / (1.0 - BETAS[1] ** self._steps)
            with torch.no_grad():
                weight *= 1.0 - LEARNING_RATE * WEIGHT_DECAY
                weight -= LEARNING_RATE * mean / (square.sqrt() + ADAM_EPSILON)
        return clipped
