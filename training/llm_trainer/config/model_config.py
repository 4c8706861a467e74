"""Architecture of a decoder-only transformer."""

from __future__ import annotations

from dataclasses import dataclass

from llm_trainer.config.section import Section

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu")
GATED = ("swiglu", "geglu")  # Shazeer 2020, arXiv:2002.05202: act(gate(x)) · up(x)
NORMS = ("layer_norm", "rms_norm")
POSITION_ENCODINGS = ("sinusoidal", "learned", "rope")


@dataclass
class ModelConfig(Section):
    """Architecture of a decoder-only transformer.

    GPT-2 is position_encoding learned, activation gelu_tanh. LLaMA is norm rms_norm, position_encoding rope, activation
    swiglu, use_bias false, tie_word_embeddings false.

    Attributes:
        vocab_size: tokens of the vocabulary.
        d_model: width of the hidden states.
        n_heads: attention heads; they divide d_model.
        n_layers: transformer layers.
        d_ff: width of the feed-forward network, of each of its two halves where the activation is gated.
        max_seq_len: longest sequence, in tokens.
        dropout: of the embeddings and of each residual branch.
        attention_dropout: of the attention weights.
        activation: gelu, gelu_tanh, relu or silu; swiglu or geglu are gated.
        pre_norm: normalise before each branch and once at the end; otherwise after each residual sum.
        use_learned_pos_emb: learned absolute positions rather than sinusoidal ones.
        gradient_checkpointing: keep only each layer's input and compute the rest again in the backward pass.
        init_std: standard deviation of initial weights; of residual projections divided by sqrt(2 · n_layers).
        layer_norm_eps: added to the variance.
        use_bias: linear layers and LayerNorm have biases; the head has none.
        n_kv_heads: key and value heads (grouped-query attention); None: as many as n_heads.
        norm: layer_norm or rms_norm.
        position_encoding: sinusoidal, learned or rope; None: as use_learned_pos_emb says.
        rope_theta: base of the rotary frequencies.
        tie_word_embeddings: the head's weight is that of the token embedding.
    """

    vocab_size: int = 50000
    d_model: int = 768
    n_heads: int = 12
    n_layers: int = 12
    d_ff: int = 3072
    max_seq_len: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = "gelu"
    pre_norm: bool = True
    use_learned_pos_emb: bool = False
    gradient_checkpointing: bool = False
    init_std: float = 0.02
    layer_norm_eps: float = 1e-5
    use_bias: bool = True
    n_kv_heads: int | None = None
    norm: str = "layer_norm"
    position_encoding: str | None = None
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = True

    @property
    def d_head(self) -> int:
        """Width of an attention head."""
        return self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def positions(self) -> str:
        """Encoding of positions: sinusoidal, learned or rope."""
        return self.position_encoding or ("learned" if self.use_learned_pos_emb else "sinusoidal")

    @property
    def is_gated(self) -> bool:
        """The feed-forward network has a gate."""
        return self.activation in GATED

    @property
    def num_parameters(self) -> int:
        """Parameters of the model, tied weights counted once."""
        norm = self.d_model * (2 if self.norm == "layer_norm" and self.use_bias else 1)
        bias = int(self.use_bias)
        qkv = (self.d_model + bias) * (self.n_heads + 2 * self.kv_heads) * self.d_head
        output = (self.d_model + bias) * self.d_model
        up = (self.d_model + bias) * self.d_ff * (2 if self.is_gated else 1)
        down = (self.d_ff + bias) * self.d_model
        embeddings = self.vocab_size * self.d_model * (1 if self.tie_word_embeddings else 2)
        embeddings += self.max_seq_len * self.d_model if self.positions == "learned" else 0
        return embeddings + self.n_layers * (2 * norm + qkv + output + up + down) + (norm if self.pre_norm else 0)

    def validate(self) -> None:
        """Check every field.

        Raises:
            ModelConfigurationError: a value is not allowed, or does not fit another.
        """
        self._whole("vocab_size", "d_model", "n_heads", "n_layers", "d_ff", "max_seq_len")
        self._real("dropout", "attention_dropout", below=1.0)
        self._real("init_std", "layer_norm_eps", below=1.0)
        self._flag("pre_norm", "use_learned_pos_emb", "gradient_checkpointing", "use_bias", "tie_word_embeddings")
        self._choice("activation", ACTIVATIONS)
        self._choice("norm", NORMS)
        if self.position_encoding is not None:
            self._choice("position_encoding", POSITION_ENCODINGS)
        if self.n_kv_heads is not None:
            self._whole("n_kv_heads")
        self._real("rope_theta", least=1.0)
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Check what fields say of each other."""
        if self.d_model % self.n_heads:
            raise self._refuse("n_heads", f"it must divide d_model, {self.d_model}. Try {_divisors(self.d_model)}")
        if self.n_heads % self.kv_heads:
            raise self._refuse("n_kv_heads", f"it must divide n_heads, {self.n_heads}. Try {_divisors(self.n_heads)}")
        if self.use_learned_pos_emb and self.position_encoding not in (None, "learned"):
            raise self._refuse("position_encoding", "use_learned_pos_emb says learned. Give one of them")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise self._refuse("d_model", "sinusoidal positions need an even width. Try position_encoding learned")
        if self.positions == "rope" and self.d_head % 2:
            raise self._refuse("n_heads", f"rotary positions need an even width of heads, not {self.d_head}")


def _divisors(number: int, most: int = 8) -> str:
    """Return the smallest divisors of a number as alternatives.

    >>> _divisors(12)
    '1, 2, 3, 4, 6 or 12'
    """
    divisors = [str(divisor) for divisor in range(1, number + 1) if number % divisor == 0][:most]
    return " or ".join([", ".join(divisors[:-1]), divisors[-1]] if len(divisors) > 1 else divisors)
