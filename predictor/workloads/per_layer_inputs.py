"""Per-layer inputs: every layer mixes in an embedding of its own of each token (Gemma 3n, Gemma 4).

Source: transformers, models/gemma4/modeling_gemma4.py (per_layer_input_gate, per_layer_projection,
per_layer_model_projection).
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.operator import Direction
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.tasks import ADD_PASSES, BACKWARD, Task, operator_task, shaped_task, stream_task

# Reads and writes of the elements of a token's own embedding in one layer: it is looked up, added to the projection of
# the hidden state, and multiplied with the gate; backward both factors' gradients are made.
ELEMENT_PASSES = (2 + 3 + 3, 2 + 3 + 5)


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """Sizes of per-layer inputs.

    Attributes:
        width: of a layer's own embedding of a token.
        vocab_size: rows of the table, which holds all layers' embeddings.
    """

    width: int
    vocab_size: int

    def layer_parameters(self, hidden_size: int, norm_parameters: int) -> int:
        """Return the parameters of one layer: of the gate, of the projection back, of the norm behind it."""
        return 2 * hidden_size * self.width + norm_parameters

    def beginning_parameters(self, hidden_size: int, num_layers: int) -> int:
        """Return the parameters before the layers: the table, a projection of the embedding for every layer, a norm."""
        return (self.vocab_size + hidden_size) * num_layers * self.width + self.width

    def multiplications(self, hidden_size: int) -> float:
        """Return the multiplications of a token in one layer, with its share of the projection before the layers."""
        return 3.0 * hidden_size * self.width

    def tasks(self, call: LayerCall, direction: Direction, norm: str) -> list[Task]:
        """Return what one layer's pass runs, with its share of the projection before the layers."""
        tokens, hidden = call.tokens, call.hidden_size
        elements = tokens * self.width * ELEMENT_PASSES[direction is BACKWARD]
        added = tokens * hidden * ADD_PASSES
        return [
            shaped_task("ffn_up", (tokens, hidden, self.width), direction, 2.0)._replace(name="per_layer_gate"),
            shaped_task("ffn_down", (tokens, self.width, hidden), direction)._replace(name="per_layer_projection"),
            operator_task(norm, call, direction),
            stream_task("per_layer_inputs", (elements + added) * call.element_bytes, call, launches=3),
        ]
