"""A decoder-only transformer language model, whole or one stage of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from llm_trainer.config import ModelConfig
from llm_trainer.exceptions import ModelConfigurationError
from llm_trainer.models.kv_cache import KVCache
from llm_trainer.models.layers import Context, TransformerLayer, make_norm
from llm_trainer.models.pretrained import check_weights, read_config_and_weights, save
from llm_trainer.models.rope import rotary_table, sinusoidal_table
from model_training_framework.trainer.operator_scopes import operator


class ModelOutput(NamedTuple):
    """Loss and logits, by attribute, by name or by place.

    A tuple, so that DistributedDataParallel and FSDP2 see the tensors inside.

    Attributes:
        loss: mean cross entropy of the next token; None without labels.
        logits: (batch, sequence, vocabulary).
    """

    loss: Tensor | None
    logits: Tensor

    def __getitem__(self, key: Any) -> Any:
        """Return a field by its name or place."""
        if isinstance(key, str):
            if key not in self._fields:
                raise KeyError(key)
            return getattr(self, key)
        return tuple(self)[key]


class Embedding(nn.Module):
    """Token embedding, plus absolute positions unless they are rotary.

    Beside sinusoidal positions, whose entries are about 1, embeddings are scaled by sqrt(d_model) as in Vaswani et al.
    2017, arXiv:1706.03762, section 3.4.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Create the tables."""
        super().__init__()
        self.dropout = config.dropout
        self.scale = math.sqrt(config.d_model) if config.positions == "sinusoidal" else 1.0
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_seq_len, config.d_model) if config.positions == "learned" else None
        self._table_shape = (config.max_seq_len, config.d_model)
        table = sinusoidal_table(*self._table_shape) if config.positions == "sinusoidal" else None
        self.register_buffer("table", table, persistent=False)

    def fill_buffers(self) -> None:
        """Compute the sinusoidal table, as after moving off the meta device."""
        if self.table is not None:
            self.table.copy_(sinusoidal_table(*self._table_shape))

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return hidden states.

        Args:
            input_ids: (batch, sequence) tokens.
            positions: (batch or 1, sequence) of the tokens.
        """
        with operator("embedding"):
            hidden = self.tokens(input_ids)
        if self.positions is not None or self.table is not None:
            with operator("position_embedding"):
                if self.positions is not None:
                    hidden = hidden + self.positions(positions)
                else:
                    hidden = hidden * self.scale + self.table[positions].to(hidden.dtype)
        if self.dropout and self.training:
            with operator("hidden_dropout"):
                hidden = functional.dropout(hidden, self.dropout)
        return hidden


IGNORED = -100  # a label that does not count
CrossEntropy = Callable[[Tensor, Tensor], Tensor]


class TransformerLM(nn.Module):
    """A decoder-only transformer language model, or the stage of one that holds consecutive layers.

    Attributes:
        config: the whole model's architecture.
        embed: token embedding and absolute positions; None behind the first stage.
        layers: by their names in the whole model, "0", "1", …
        norm: of the last hidden states; None before the last stage, and with ``pre_norm`` false.
        head: projection to the vocabulary; None before the last stage.
        cross_entropy: from logits (tokens, vocabulary) and targets (tokens,) to their mean loss.
    """

    def __init__(self, config: ModelConfig, layers: range | None = None) -> None:
        """Create a model with random weights.

        Args:
            config: its architecture.
            layers: of a pipeline stage; None: all. The first layer comes with the embedding, the last with the head.

        Raises:
            ModelConfigurationError: a value of the configuration is not allowed, or there are no such layers.
        """
        super().__init__()
        config.validate()
        layers = range(config.n_layers) if layers is None else layers
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= config.n_layers:
            raise ModelConfigurationError(f"layers are {layers}; expected consecutive ones of {config.n_layers}")
        is_first, is_last = layers.start == 0, layers.stop == config.n_layers
        self.config = config
        self.embed = Embedding(config) if is_first else None
        self.layers = nn.ModuleDict({str(layer): TransformerLayer(config, str(layer)) for layer in layers})
        self.norm = make_norm(config) if is_last and config.pre_norm else None
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False) if is_last else None
        self.cross_entropy: CrossEntropy = mean_cross_entropy
        self.register_buffer("cos", None, persistent=False)
        self.register_buffer("sin", None, persistent=False)
        if config.positions == "rope":
            self.cos, self.sin = rotary_table(config.max_seq_len, config.d_head, config.rope_theta)
        self.tie_weights()
        self.init_weights()

    def tie_weights(self) -> None:
        """Let head and token embedding share their weight where the configuration says so and both are here."""
        if self.config.tie_word_embeddings and self.embed is not None and self.head is not None:
            self.head.weight = self.embed.tokens.weight

    def init_weights(self) -> None:
        """Draw weights, and compute tables of positions, as after moving off the meta device.

        Source: Radford et al. 2019 (GPT-2), section 2.3: residual projections have 1 / sqrt(2 · n_layers) of the
        deviation.
        """
        std = self.config.init_std
        residual_std = std / math.sqrt(2 * self.config.n_layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                is_residual = name.endswith(("attention.output", "ffn.down"))
                nn.init.normal_(module.weight, std=residual_std if is_residual else std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()
        if self.embed is not None:
            self.embed.fill_buffers()
        if self.cos is not None:
            cos, sin = rotary_table(self.config.max_seq_len, self.config.d_head, self.config.rope_theta)
            self.cos.copy_(cos)
            self.sin.copy_(sin)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> ModelOutput | Tensor:
        """Return loss and logits, or hidden states where the head is on a later stage.

        Args:
            input_ids: (batch, sequence) tokens; hidden states (batch, sequence, d_model) where ``embed`` is None.
            attention_mask: (batch, tokens), 1 for a token and 0 for padding, on either side; with a cache it covers the
                cached tokens too. None: all are tokens, which is faster.
            labels: (batch, sequence) the tokens again, not shifted; -100 does not count.
            cache: of earlier tokens; the new ones are appended.

        Raises:
            ModelConfigurationError: the sequence is longer than the model's.
        """
        sequence = input_ids.shape[1]
        past = cache.length if cache is not None else 0
        if past + sequence > self.config.max_seq_len:
            raise ModelConfigurationError(
                f"the sequence has {past + sequence} tokens; max_seq_len is {self.config.max_seq_len}. Shorten it"
            )
        if attention_mask is None:
            positions = torch.arange(past, past + sequence, device=input_ids.device).unsqueeze(0)
        else:
            positions = (attention_mask.long().cumsum(1) - 1).clamp_(min=0)[:, past:]
        hidden = input_ids if self.embed is None else self.embed(input_ids, positions)
        context = self._context(positions, attention_mask, past, hidden.dtype, cache)
        for layer in self.layers.values():
            if self.config.gradient_checkpointing and self.training and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, context, use_reentrant=False)
            else:
                hidden = layer(hidden, context)
        if cache is not None:
            cache.advance(sequence)
        if self.head is None:
            return hidden
        if self.norm is not None:
            with operator(self.config.norm):
                hidden = self.norm(hidden)
        with operator("lm_head"):
            logits = self.head(hidden)
        return ModelOutput(None if labels is None else next_token_loss(logits, labels, self.cross_entropy), logits)

    def _context(
        self, positions: Tensor, attention_mask: Tensor | None, past: int, dtype: torch.dtype, cache: KVCache | None
    ) -> Context:
        """Return what attention needs: which keys a query sees, and the rotary angles of the positions."""
        sequence = positions.shape[1]
        cos = sin = None
        if self.cos is not None and self.sin is not None:
            shape = (*positions.shape, 1, 1, self.config.d_head)
            cos, sin = (table[positions].view(shape).to(dtype) for table in (self.cos, self.sin))
        if attention_mask is None and past == 0 and sequence > 1:
            return Context(None, True, cos, sin, cache)  # a constant: a comparison of sizes cannot be compiled
        if attention_mask is None and sequence == 1:
            return Context(None, False, cos, sin, cache)
        keys = torch.arange(past + sequence, device=positions.device)
        queries = keys[past:].unsqueeze(1)
        mask = (keys <= queries)[None, None]
        if attention_mask is not None:  # padding sees itself, so that no row of the softmax is empty
            mask = mask & (attention_mask.bool()[:, None, None, :] | (keys == queries))
        return Context(mask, False, cos, sin, cache)

    def stage(self, layers: range) -> Self:
        """Return the pipeline stage of these layers, with this model's own weights under their own names.

        Raises:
            ModelConfigurationError: there are no such layers.
        """
        with torch.device("meta"):
            part = type(self)(self.config, layers)
        part.embed = self.embed if part.embed is not None else None
        part.norm = self.norm if part.norm is not None else None
        part.head = self.head if part.head is not None else None
        part.layers = nn.ModuleDict({name: self.layers[name] for name in part.layers})
        part.cos, part.sin = self.cos, self.sin
        part.train(self.training)
        return part

    def get_num_params(self) -> int:
        """Return the number of parameters, tied weights counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def get_model_size_mb(self) -> float:
        """Return the memory of parameters and buffers in MB (1 MB = 1e6 bytes)."""
        tensors = [*self.parameters(), *self.buffers()]
        size_bytes = sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors)
        return size_bytes / 1e6

    def generate(self, input_ids: Tensor, max_length: int = 100, **kwargs: Any) -> Tensor:
        """Return the tokens given and the tokens that the model adds to them.

        Args:
            input_ids: (batch, sequence) tokens.
            max_length: of the result, in tokens.
            kwargs: other fields of ``llm_trainer.utils.generation.GenerationConfig``.
        """
        from llm_trainer.utils.generation import GenerationConfig, generate_ids  # it imports this module

        with torch.no_grad():
            return generate_ids(self, input_ids, GenerationConfig(max_length=max_length, **kwargs))

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write config.json and model.safetensors to a folder, which is created.

        Raises:
            OSError: they cannot be written.
        """
        save(self, Path(save_directory))

    @classmethod
    def from_pretrained(cls, load_directory: str | Path) -> Self:
        """Return the model of a folder that ``save_pretrained`` wrote, here or in transformers (GPT-2 and LLaMA).

        Raises:
            ModelConfigurationError: files are missing or damaged, or do not fit each other.
        """
        folder = Path(load_directory)
        config, weights = read_config_and_weights(folder)
        model = cls(config)
        check_weights(weights, model.state_dict(), folder)
        model.load_state_dict(weights)
        model.eval()
        return model


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of targets, (tokens,), from logits, (tokens, vocabulary); -100 does not count."""
    return functional.cross_entropy(logits, targets, ignore_index=IGNORED)


def next_token_loss(logits: Tensor, labels: Tensor, cross_entropy: CrossEntropy = mean_cross_entropy) -> Tensor:
    """Return the mean cross entropy of every token given those before it.

    Labels are shifted rather than logits, which are far larger: no logit is copied.

    Args:
        logits: (batch, sequence, vocabulary).
        labels: (batch, sequence) tokens, not shifted; -100 does not count.
        cross_entropy: mean over tokens.
    """
    with operator("torch_cross_entropy" if cross_entropy is mean_cross_entropy else "cross_entropy"):
        following = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return cross_entropy(logits.flatten(0, 1), following.flatten())
