"""Parts of a transformer layer; hidden states are (batch, sequence, d_model)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from llm_trainer.config import ModelConfig
from llm_trainer.models.kv_cache import KVCache
from llm_trainer.models.rope import rotate
from model_training_framework.trainer.operator_scopes import operator


@dataclass(frozen=True, slots=True)
class Context:
    """What every layer's attention needs besides hidden states.

    Attributes:
        mask: True where a query may see a key, broadcast to (batch, heads, queries, keys); None: as ``is_causal`` says.
        is_causal: a query sees itself and the keys before it.
        cos: of the rotary angles, (batch or 1, sequence, 1, 1, d_head); None without rotary positions.
        sin: signed sines, as ``cos``.
        cache: keys and values of earlier tokens.
    """

    mask: Tensor | None = None
    is_causal: bool = True
    cos: Tensor | None = None
    sin: Tensor | None = None
    cache: KVCache | None = None


def make_norm(config: ModelConfig) -> nn.Module:
    """Return a normalisation of hidden states."""
    if config.norm == "rms_norm":
        return nn.RMSNorm(config.d_model, eps=config.layer_norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps, bias=config.use_bias)


class Attention(nn.Module):
    """Causal self-attention, grouped-query where there are fewer key and value heads.

    Rows of ``qkv`` are grouped by key and value head, [its queries, its key, its value], as in Megatron-LM: a
    column-parallel split between groups leaves every rank whole heads, and the rank counts them by its own width.
    """

    def __init__(self, config: ModelConfig, name: str) -> None:
        """Create the two projections of the layer called ``name``."""
        super().__init__()
        self.name = name
        self.d_head = config.d_head
        self.group = config.n_heads // config.kv_heads  # queries per key and value head
        self.dropout = config.attention_dropout
        width = config.kv_heads * (self.group + 2) * config.d_head
        self.qkv = nn.Linear(config.d_model, width, bias=config.use_bias)
        self.output = nn.Linear(config.d_model, config.d_model, bias=config.use_bias)

    def forward(self, hidden: Tensor, context: Context) -> Tensor:
        """Return the attention branch, of the shape of ``hidden``."""
        with operator("qkv_projection"):
            qkv = self.qkv(hidden)
        batch, sequence, width = qkv.shape
        qkv = qkv.view(batch, sequence, width // ((self.group + 2) * self.d_head), self.group + 2, self.d_head)
        query, key, value = qkv.split((self.group, 1, 1), dim=3)
        if context.cos is not None and context.sin is not None:
            with operator("rope"):
                query, key = (rotate(heads, context.cos, context.sin) for heads in (query, key))
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in (query, key, value))
        if context.cache is not None:
            key, value = context.cache.update(self.name, key, value)
        with operator("grouped_query_attention" if self.group > 1 else "flash_attention"):
            attended = functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=context.mask,
                dropout_p=self.dropout if self.training else 0.0,
                is_causal=context.is_causal,
                enable_gqa=self.group > 1,
            )
        with operator("context_copy"):
            attended = attended.transpose(1, 2).reshape(batch, sequence, -1)
        with operator("attention_output"):
            return self.output(attended)


class FeedForward(nn.Module):
    """Two projections with an activation between them; a third one is the gate where the activation is gated."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the projections."""
        super().__init__()
        self.activation = config.activation
        self.up = nn.Linear(config.d_model, config.d_ff, bias=config.use_bias)
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=config.use_bias) if config.is_gated else None
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.use_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the feed-forward branch, of the shape of ``hidden``."""
        with operator("ffn_up"):
            up = self.up(hidden)
            gate = self.gate(hidden) if self.gate is not None else up
        with operator(self.activation):
            if self.activation == "swiglu":
                wide = functional.silu(gate) * up
            elif self.activation == "geglu":
                wide = functional.gelu(gate) * up
            elif self.activation == "silu":
                wide = functional.silu(up)
            elif self.activation == "relu":
                wide = functional.relu(up)
            else:
                wide = functional.gelu(up, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        with operator("ffn_down"):
            return self.down(wide)


class TransformerLayer(nn.Module):
    """Attention and feed-forward network, each added to the hidden states and normalised before or after."""

    def __init__(self, config: ModelConfig, name: str) -> None:
        """Create the layer called ``name``."""
        super().__init__()
        self.pre_norm = config.pre_norm
        self.norm_name = config.norm
        self.dropout = config.dropout
        self.attention_norm = make_norm(config)
        self.attention = Attention(config, name)
        self.ffn_norm = make_norm(config)
        self.ffn = FeedForward(config)

    def forward(self, hidden: Tensor, context: Context) -> Tensor:
        """Return the hidden states behind this layer."""
        if self.pre_norm:
            hidden = self._add(hidden, self.attention(self._normalize(self.attention_norm, hidden), context))
            return self._add(hidden, self.ffn(self._normalize(self.ffn_norm, hidden)))
        hidden = self._normalize(self.attention_norm, self._add(hidden, self.attention(hidden, context)))
        return self._normalize(self.ffn_norm, self._add(hidden, self.ffn(hidden)))

    def _normalize(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        with operator(self.norm_name):
            return norm(hidden)

    def _add(self, hidden: Tensor, branch: Tensor) -> Tensor:
        if self.dropout and self.training:
            with operator("hidden_dropout"):
                branch = functional.dropout(branch, self.dropout)
        with operator("residual_add"):
            return hidden + branch
