"""The token mixers of layers: kinds of attention, and those with a block of their own, a file of this folder each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field

from predictor.core.blocks.gated_delta import GatedDelta
from predictor.core.blocks.lightning_attention import LightningAttention
from predictor.core.blocks.mamba2 import Mamba2
from predictor.core.blocks.recurrence import Recurrence
from predictor.core.blocks.token_mixer import TokenMixer
from predictor.core.workload.switches import Ffn


class Mixer(StrEnum):
    """What mixes the tokens of a layer.

    ``sliding_attention``: a query sees the last ``sliding_window`` tokens; ``chunked_attention``: those of its own
    chunk of ``attention_chunk`` (Llama 4); ``shared_index_attention``: the keys that the indexer of an earlier layer
    chose (GLM-5.2); ``mamba2``: a state-space layer (Dao & Gu 2024, arXiv:2405.21060);
    ``gated_delta``: a gated delta layer (Yang et al. 2024, arXiv:2412.06464); ``lightning_attention``: linear
    attention of fixed decays (MiniMax-01, arXiv:2501.08313); ``recurrence``: any other linear recurrence (Mamba, RWKV,
    short convolutions); ``none``: the layer is its FFN alone.
    """

    FULL = "full_attention"
    SLIDING = "sliding_attention"
    CHUNKED = "chunked_attention"
    SHARED_INDEX = "shared_index_attention"
    MAMBA2 = "mamba2"
    GATED_DELTA = "gated_delta"
    LIGHTNING_ATTENTION = "lightning_attention"
    RECURRENCE = "recurrence"
    NONE = "none"

    @property
    def is_attention(self) -> bool:
        """Return whether it is softmax attention."""
        return self in (Mixer.FULL, Mixer.SLIDING, Mixer.CHUNKED, Mixer.SHARED_INDEX)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # a base alone
class Mixers:
    """Sizes of token mixers with a block of their own, as keys of the section ``model`` named like their layers."""

    mamba2: Annotated[Mamba2 | None, Field(description="sizes of Mamba-2 layers")] = None
    gated_delta: Annotated[GatedDelta | None, Field(description="sizes of gated delta layers")] = None
    lightning_attention: Annotated[
        LightningAttention | None, Field(description="sizes of lightning attention layers")
    ] = None
    recurrence: Annotated[Recurrence | None, Field(description="sizes of other recurrent layers")] = None

    @property
    def mixers(self) -> dict[Mixer, TokenMixer]:
        """Return the given ones."""
        sizes = {mixer: getattr(self, mixer) for mixer in WITH_BLOCKS}
        return {mixer: given for mixer, given in sizes.items() if given is not None}


WITH_BLOCKS = tuple(Mixer(field.name) for field in fields(Mixers))


class LayerKind(NamedTuple):
    """What sets a layer apart from others of the same model.

    ``in_16_bits``: a recipe of low precision leaves it out; ``rotates``: its attention has rotary positions, where the
    model has such.
    """

    mixer: Mixer = Mixer.FULL
    ffn: Ffn = Ffn.DENSE
    in_16_bits: bool = False
    rotates: bool = True

    @property
    def has_experts(self) -> bool:
        """Return whether it has a mixture of experts."""
        return self.ffn is Ffn.EXPERTS

    @property
    def branches(self) -> int:
        """Return the residual branches: token mixer and FFN, where it has them."""
        return (self.mixer is not Mixer.NONE) + (self.ffn is not Ffn.NONE)
