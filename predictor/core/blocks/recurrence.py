"""A token mixer of linear layers around an element-wise recurrence: Mamba, RG-LRU, RWKV, mLSTM, short convolutions.

Its products are timed as products, the recurrence by the bytes that it moves. Sources: Gu & Dao 2023, arXiv:2312.00752;
De et al. 2024, arXiv:2402.19427; Peng et al. 2023, arXiv:2305.13048; Beck et al. 2024, arXiv:2405.04517.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from predictor.core.base.fields import Amount, Count
from predictor.core.blocks.token_mixer import Around, Kernels, TokenMixer, out_projection
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import product, stream
from predictor.core.rows import Kept, Matrix, Module, Reads, Role, Split

# Backward, an element-wise kernel reads its inputs and the gradient of its output, and writes the gradients of its
# inputs: of one input and one output twice, of two inputs and one output 5 / 3 of what it moves forward.
BACKWARD_SHARE = 2.0


@dataclass(frozen=True, slots=True)
class Recurrence(TokenMixer):
    """Sizes of recurrent layers that have no block of their own."""

    projections: Annotated[
        tuple[tuple[Count, Count], ...],
        Field(
            min_length=1, description="inputs and outputs of the linear layers; the last one writes the hidden state"
        ),
    ]
    streamed: Annotated[
        Amount, Field(description="elements of a token that element-wise kernels read or write forward")
    ]
    vectors: Annotated[Amount, Field(description="parameters of convolutions, decays, norms and biases")] = 0

    splits_layers: ClassVar[bool] = False

    def rows(self, call: LayerCall, kernels: Kernels, biases: bool) -> Around:
        """Return the products, and the recurrence by its bytes; only whole layers are modelled."""
        *before, (inputs, outputs) = self.projections
        per_element = float(call.tokens * call.element_bytes)
        normed = Reads(Role.NORMED, call.unsplit_tokens * call.hidden_size)
        reads = [normed, *[None] * (len(before) - 1)]
        projections = [
            product(
                "in_projection",
                Module.MIXER,
                "qkv_projection",
                (call.tokens, *sizes),
                Split.COLUMN,
                read,
                keeps=(Kept(Role.QKV, per_element * sizes[1]),),
                matrix=Matrix.IN_PROJECTION,
            )
            for sizes, read in zip(before, reads, strict=True)
        ]
        streamed = call.tokens * self.streamed * call.element_bytes
        recurrence = stream(
            "recurrence",
            Module.MIXER,
            call,
            (streamed, streamed * BACKWARD_SHARE),
            weights=self.vectors,
            keeps=(Kept(Role.CORE, per_element * inputs),),
            multiplications=float(self.streamed),
        )
        output = out_projection(call, inputs, outputs)
        return Around([*projections, recurrence, output], [])
