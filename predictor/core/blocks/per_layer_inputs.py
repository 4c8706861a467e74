"""Per-layer inputs: every layer mixes in an embedding of its own of each token (Gemma 3n, Gemma 4).

Source: transformers, models/gemma4/modeling_gemma4.py (per_layer_input_gate, per_layer_projection,
per_layer_model_projection).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from predictor.core.base.fields import Count
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import named, product, stream
from predictor.core.rows import Kind, Module, Row, Split
from predictor.core.workload.tasks import ADD_PASSES

# Reads and writes of the elements of a token's own embedding in one layer: it is looked up, added to the projection of
# the hidden state, and multiplied with the gate; backward both factors' gradients are made.
ELEMENT_PASSES = (2 + 3 + 3, 2 + 3 + 5)


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """Embeddings that every layer mixes in (Gemma 3n, Gemma 4)."""

    width: Annotated[Count, Field(description="of a layer's own embedding of a token")]
    vocab_size: Annotated[Count, Field(description="rows of the table, which holds all layers' embeddings")]

    def beginning_parameters(self, hidden_size: int, num_layers: int) -> int:
        """Return the parameters before the layers: the table, a projection of the embedding for every layer, a norm."""
        return (self.vocab_size + hidden_size) * num_layers * self.width + self.width

    def rows(self, call: LayerCall, norm: str, norm_parameters: int) -> list[Row]:
        """Return the rows of one layer, with its share of the projection before the layers.

        Args:
            call: sizes of the layer.
            norm: operator of a norm.
            norm_parameters: of one norm over the hidden size.
        """
        tokens, hidden = call.tokens, call.hidden_size
        elements, added = tokens * self.width, tokens * hidden * ADD_PASSES
        forward, backward = ((elements * passes + added) * call.element_bytes for passes in ELEMENT_PASSES)
        gate = product("per_layer_gate", Module.MIXER, "ffn_up", (tokens, hidden, self.width), Split.WHOLE)
        back = product("per_layer_projection", Module.MIXER, "ffn_down", (tokens, self.width, hidden), Split.WHOLE)
        before = product("per_layer_gate", Module.MIXER, "ffn_up", (tokens, hidden, self.width), Split.WHOLE)
        return [
            before._replace(weights=0),  # of the model's beginning
            gate,
            back,
            named(norm, Module.MIXER, call, Kind.NORM, weights=norm_parameters),
            stream("per_layer_inputs", Module.MIXER, call, (forward, backward), (3, 3)),
        ]
