"""Low-rank adapters: beside a linear layer whose weights are frozen, two narrow ones train.

Base weights have no gradients and no optimizer states; the gradient of their input is computed as ever.
Source: Hu et al. 2021, arXiv:2106.09685; Megatron-Bridge, src/megatron/bridge/peft/lora.py and utils.py
(ParallelLinearAdapter: how tensor parallelism splits an adapter).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from predictor.workloads.mixers.linear import Linear, Split
from predictor.workloads.switches import Ffn, LayerKind
from predictor.workloads.transformer import Transformer

OUTPUTS = ("attention_output", "out_projection")


class LoraTarget(StrEnum):
    """A linear layer that may have an adapter; ``qkv``: all that a token mixer projects its input with."""

    QKV = "qkv"
    ATTENTION_OUTPUT = "attention_output"
    FFN_UP = "ffn_up"
    FFN_DOWN = "ffn_down"


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of a run.

    Attributes:
        rank: inner width of an adapter.
        targets: linear layers that have one.
        train_embeddings: embedding and output projection train too.
    """

    rank: int
    targets: tuple[LoraTarget, ...] = tuple(LoraTarget)
    train_embeddings: bool = False

    def linears(self, model: Transformer, kind: LayerKind) -> tuple[Linear, ...]:
        """Return the linear layers of a kind of layer that have an adapter; experts have none."""
        targets = self.targets
        wanted = [
            linear
            for linear in model.mixer_linears(kind.mixer)
            if (LoraTarget.ATTENTION_OUTPUT if linear.name in OUTPUTS else LoraTarget.QKV) in targets
        ]
        hidden, width = model.hidden_size, model.ffn_hidden_size
        if kind.ffn is Ffn.DENSE and LoraTarget.FFN_UP in targets:
            wanted.append(Linear("ffn_up", "ffn_up", hidden, width * (model.ffn_matrices - 1), Split.COLUMN))
        if kind.ffn is Ffn.DENSE and LoraTarget.FFN_DOWN in targets:
            wanted.append(Linear("ffn_down", "ffn_down", width, hidden, Split.ROW))
        return tuple(wanted)

    def pair(self, linear: Linear) -> tuple[Linear, Linear]:
        """Return the two matrices of a linear layer's adapter.

        Of a column-parallel layer both are split by their outputs; of a row-parallel one the first by its inputs.
        """
        whole = linear.split is Split.WHOLE
        down = Split.WHOLE if whole else Split.ROW if linear.split is Split.ROW else Split.COLUMN
        up = Split.WHOLE if whole else Split.COLUMN
        return (
            Linear("lora_down", linear.operator, linear.inputs, self.rank, down),
            Linear("lora_up", linear.operator, self.rank, linear.outputs, up),
        )

    def parameters(self, model: Transformer, kind: LayerKind, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of one layer's adapters on one rank."""
        return sum(
            matrix.parameters(tensor_parallel_size)
            for linear in self.linears(model, kind)
            for matrix in self.pair(linear)
        )

    def model_flops_per_token(self, model: Transformer) -> float:
        """Return the FLOPs that a token needs: of frozen weights no gradients, of adapters all three products.

        Source: Megatron-Bridge, src/megatron/bridge/training/utils/flop_utils.py (4 FLOPs a parameter with LoRA).
        """
        kinds = [model.kind(layer) for layer in range(model.num_layers)]
        frozen = sum(model.layer_matrices(kind) for kind in kinds)
        frozen += 0 if self.train_embeddings or not model.has_lm_head else model.hidden_size * model.vocab_size
        adapters = sum(self.parameters(model, kind) for kind in kinds)
        return model.model_flops_per_token() - 2.0 * frozen + 6.0 * adapters
