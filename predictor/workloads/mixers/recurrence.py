"""A token mixer of linear layers around an element-wise recurrence: Mamba, RG-LRU, RWKV, mLSTM, short convolutions.

Its products are timed as products, the recurrence by the bytes that it moves. Sources: Gu & Dao 2023, arXiv:2312.00752;
De et al. 2024, arXiv:2402.19427; Peng et al. 2023, arXiv:2305.13048; Beck et al. 2024, arXiv:2405.04517.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.operator import Direction
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.mixers.linear import Linear, Split, linear_tasks, total
from predictor.workloads.mixers.token_mixer import KeptByMixer, Kernels
from predictor.workloads.tasks import BACKWARD, Task, stream_task

# Backward, an element-wise kernel reads its inputs and the gradient of its output, and writes the gradients of its
# inputs: of one input and one output twice, of two inputs and one output 5 / 3 of what it moves forward.
BACKWARD_SHARE = 2.0


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Sizes of a recurrent layer.

    Attributes:
        projections: inputs and outputs of its linear layers; the last one writes the residual stream.
        vectors: parameters beside those: of convolutions, decays, norms and biases.
        streamed: elements of a token that its element-wise kernels read or write forward.
    """

    projections: tuple[tuple[int, int], ...]
    vectors: int
    streamed: int

    def linears(self, hidden_size: int, num_heads: int) -> tuple[Linear, ...]:
        """Return the matrices, the last one the output's."""
        *before, (inputs, outputs) = self.projections
        return (
            *(Linear("in_projection", "qkv_projection", *sizes, Split.COLUMN) for sizes in before),
            Linear("out_projection", "attention_output", inputs, outputs, Split.ROW),
        )

    def parameters(self, hidden_size: int, num_heads: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank; only whole layers are modelled."""
        return total(self.linears(hidden_size, num_heads), tensor_parallel_size) + self.vectors

    def biases(self, hidden_size: int) -> int:
        """Return none: ``vectors`` has them."""
        return 0

    def core_multiplications(self, num_heads: int, keys: int) -> float:
        """Return the multiplications of the recurrence, one per element that it streams."""
        return float(self.streamed)

    def gathered_width(self, hidden_size: int) -> int:
        """Return the width of what the first projection reads."""
        return hidden_size

    def tasks(self, call: LayerCall, direction: Direction, kernels: Kernels) -> list[Task]:
        """Return the products, and the recurrence by its bytes."""
        linears = self.linears(call.hidden_size, call.num_attention_heads)
        streamed = call.tokens * self.streamed * call.element_bytes
        share = BACKWARD_SHARE if direction is BACKWARD else 1.0
        return [*linear_tasks(linears, call, direction), stream_task("recurrence", streamed * share, call)]

    def kept(self, call: LayerCall) -> KeptByMixer:
        """Return the projections' outputs and the output projection's input."""
        per_element = float(call.tokens * call.element_bytes)
        projected = sum(outputs for _, outputs in self.projections[:-1])
        return KeptByMixer(0.0, per_element * projected, per_element * self.projections[-1][0])
