"""A mixture of experts in place of a layer's FFN: router, permutation of tokens, experts, shared experts.

Every rank of the expert-parallel group holds some of the experts and sees its own tokens, so tokens travel to their
experts and back. The tokens of the busiest rank set the time of all.

Experts' products are priced one by one, as the linear layers of so many rows that they are: Transformer Engine's
GroupedLinear runs one cuBLAS product per expert, over several streams (common/gemm/cublaslt_gemm.cu,
nvte_multi_tensor_gemm). The tables of ``expert_mlp`` do not price them: they are of inference engines' fused kernels,
forward only and of at most 16,384 tokens over all ranks, of which an expert gets hundreds (docs/adr/0027). At the
thousands of a training step they answer, in bf16 and mxfp8, 1.6 to 13 times what cuBLAS takes for the same products.

Source: Lepikhin et al. 2020, arXiv:2006.16668; Megatron-LM core/transformer/moe.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from predictor.core.blocks.ffn import activation, ffn, inner_bytes
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import product, scalars, stream
from predictor.core.rows import FP32_BYTES, Kept, Kind, Matrix, Module, Reads, Role, Row, Split
from predictor.core.workload.architecture import Architecture, MixtureOfExperts
from predictor.core.workload.expert_exchange import ExpertDispatcher, received_share, routed_share
from predictor.core.workload.layout import Layout

# Bytes per router score: softmax and top-k read and write it in fp32.
SCORE_BYTES = 4 * 4
# Softmax, top-k, histogram, sort and the index kernels around them.
ROUTER_LAUNCHES = 10
# A copy reads a row and writes it.
COPY = 2
PERMUTATION_LAUNCHES, COPY_LAUNCHES = 4, 2
# What an all-to-all needs beside the rows. Forward: the tokens of every expert, summed in 6 ways, gathered from all
# ranks and copied to the host in 5 tensors; and either way an all-to-all of the router's probabilities.
# Source: Megatron-LM core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.preprocess.
COUNTING_LAUNCHES = (6 + 3 + 5 + 3, 3)
# Kernels of a gate's clamps that load one number at a time, as they read halves of rows, and the bytes of all of them
# per element of the inner width. Forward: clamp either half. Backward: two comparisons and a masked gradient of the
# half that is clamped from both sides, one and one of the other. Beside them, with vectors: joining the halves (8),
# backward also a logical and of the comparisons (3). Source: Megatron-LM core/fusions/fused_bias_geglu.py,
# weighted_bias_quick_geglu_impl; PyTorch, torch/csrc/autograd/FunctionsManual.cpp, clamp_backward.
CLAMP_KERNELS, CLAMP_KERNEL_BYTES = (2, 5), (8, 19)
CLAMP_BYTES, CLAMP_LAUNCHES = (8, 11), (1, 2)
# The same of adding biases that are weighted by the router's fp32 probabilities, expert by expert, per output element:
# their operands differ in type and shape. Forward: bias × probability (written in fp32), the sum with the output.
# Backward: the gradient widened (6), its products with the probabilities (8) and the biases (8). Beside them, with
# vectors: joining the experts (8) and the cast back (6); backward that of the output's gradient (6), the sums of both
# products (8), joining the experts (4). Source: Megatron-LM core/transformer/moe/experts.py, TEGroupedMLP._apply_bias.
BIAS_KERNELS, BIAS_KERNEL_BYTES = (2, 3), (14, 22)
BIAS_BYTES = (14, 18)
BIAS_LAUNCHES_PER_EXPERT, BIAS_LAUNCHES = (2, 5), (4, 4)
# What the host keeps for each expert beside a product, in launches: half of 1.2 ms forward and 2.1 ms backward for two
# fused products of 64 experts on GB200, over the host's time of a launch. Backward, alone, it is the third launch of a
# linear layer. A product alone takes the host 33 µs (8 of 128 rows: 0.27 ms on SM100), which is a launch.
# Source: github.com/NVIDIA/TransformerEngine, issue 2897 and pull request 3134.
KEPT_PER_EXPERT = (0.3, 0.6)


def expert_tokens(call: LayerCall, layout: Layout) -> int:
    """Return the tokens that reach a rank's experts where each token visits one and the load is even.

    The ranks that split an expert gather the tokens that each of them has.
    """
    return call.unsplit_tokens * layout.expert_split if layout.is_folded else call.tokens


class ExpertKernels(NamedTuple):
    """Software that runs the experts.

    Attributes:
        dispatcher: moves tokens between expert-parallel ranks.
        fused: gate, biases and clamps run in the products' epilogues, one kernel per product for all experts.
        pads: products in 8 or 4 bits need rows in multiples of 16 or 32.
    """

    dispatcher: ExpertDispatcher = ExpertDispatcher.ALL_TO_ALL
    fused: bool = False
    pads: bool = False


def routed_tokens(experts: MixtureOfExperts, call: LayerCall, layout: Layout) -> float:
    """Return the tokens that the busiest rank's experts see: as many as it sends where the load is even."""
    return expert_tokens(call, layout) * routed_share(experts, layout)


def _repeated(row: Row, held: int, kept: tuple[float, float], fused: bool) -> Row:
    """Return the product of each of a rank's experts.

    Fused, one kernel is all of them. Source: Transformer Engine, pytorch/ops/fused/forward_grouped_mlp.py;
    cudnn-frontend, grouped_gemm_glu.
    """
    assert row.forward is not None
    assert row.backward is not None
    if fused:
        launches = 1.0 + held * kept[0], 2.0 + held * kept[1]
    else:
        launches = held * row.forward.launches + held * kept[0], held * row.backward.launches
    return row._replace(
        forward=row.forward._replace(times=held, launches=launches[0]),
        backward=row.backward._replace(times=held, launches=launches[1]),
        weights=held * row.weights,
        routed=True,
    )


def _routed(model: Architecture, call: LayerCall, layout: Layout, kernels: ExpertKernels) -> list[Row]:
    """Return the FFNs of a rank's experts."""
    experts = model.experts
    assert experts is not None
    held, routed = experts.num_experts // layout.expert_parallel_size, routed_tokens(experts, call, layout)
    rows, token_width = max(1, ceil(routed / held)), experts.token_width(call.hidden_size)
    width, columns = experts.expert_ffn_hidden_size // layout.expert_split, model.ffn_matrices - 1
    inner, activated = inner_bytes(model, routed, width, call.element_bytes)
    biased, met = model.biases.of_ffn, experts.experts_per_token
    up = product(
        "expert_up",
        Module.EXPERTS,
        "ffn_up",
        (rows, token_width, width * columns),
        Split.COLUMN,
        Reads(Role.ROUTED, routed * token_width),
        biases=width * columns if biased else 0,
        keeps=(inner,),
        matrix=Matrix.FFN_UP,
        parts=(1.0 / columns,) * columns,
    )
    down = product(
        "expert_down",
        Module.EXPERTS,
        "ffn_down",
        (rows, width, token_width),
        Split.ROW,
        Reads(Role.ACTIVATED, routed * width),
        biases=token_width if biased else 0,
        matrix=Matrix.FFN_DOWN,
    )
    up, down = (
        _repeated(row._replace(multiplications=row.multiplications * met), held, KEPT_PER_EXPERT, kernels.fused)
        for row in (up, down)
    )
    if kernels.fused:
        return [up, down._replace(keeps=(activated,))]
    # One kernel for all experts' rows, which lie one behind the other.
    table = [up, activation(model, Module.EXPERTS, call, (rows * held, width))._replace(keeps=(activated,)), down]
    if experts.activation_clamp is not None:
        table += _clamp(rows * held * width, call)
    return table + (_biases(rows * held * token_width, call, held) if biased else [])


def _clamp(elements: int, call: LayerCall) -> list[Row]:
    """Return the clamps of a gate's halves over the inner width, and joining them."""
    in_scalars = (elements * CLAMP_KERNEL_BYTES[0], elements * CLAMP_KERNEL_BYTES[1])
    streamed = (elements * CLAMP_BYTES[0], elements * CLAMP_BYTES[1])
    return [
        scalars("activation_clamp", Module.EXPERTS, elements, in_scalars, CLAMP_KERNELS, Kind.ACTIVATION),
        stream("activation_clamp", Module.EXPERTS, call, streamed, CLAMP_LAUNCHES, Kind.ACTIVATION),
    ]


def _biases(elements: int, call: LayerCall, held: int) -> list[Row]:
    """Return the addition of weighted biases to the output of a rank's experts."""
    launches = [held * each + other for each, other in zip(BIAS_LAUNCHES_PER_EXPERT, BIAS_LAUNCHES, strict=True)]
    in_scalars = (elements * BIAS_KERNEL_BYTES[0], elements * BIAS_KERNEL_BYTES[1])
    streamed = (elements * BIAS_BYTES[0], elements * BIAS_BYTES[1])
    return [
        scalars("expert_biases", Module.EXPERTS, elements, in_scalars, BIAS_KERNELS, Kind.BIAS),
        stream("expert_biases", Module.EXPERTS, call, streamed, (launches[0], launches[1]), Kind.BIAS),
    ]


def _permutation(experts: MixtureOfExperts, call: LayerCall, layout: Layout, kernels: ExpertKernels) -> Row:
    """Return the copies of tokens into the order of their experts and, weighted, back; backward the same in turn.

    An all-to-all sends rows in the order of the ranks, so that rows of several experts are sorted where they arrive.
    DeepEP, HybridEP and a gather deliver tokens, which are copied once for each expert on the rank. Products in 8 or 4
    bits need rows in multiples of 16 or 32: HybridEP copies them so, the others pad, and cut again.
    Source: Megatron-LM core/transformer/moe/token_dispatcher.py; moe/experts.py, quantization_padding.
    """
    held, routed = experts.num_experts // layout.expert_parallel_size, routed_tokens(experts, call, layout)
    dispatcher, launches = kernels.dispatcher, PERMUTATION_LAUNCHES
    counting = (0, 0)
    if dispatcher is ExpertDispatcher.ALL_TO_ALL:
        counting = COUNTING_LAUNCHES if layout.expert_parallel_size > 1 else (0, 0)
        rows = COPY * call.unsplit_tokens * (1.0 + routed_share(experts, layout))
        if held > 1:
            rows, launches = rows + 2 * COPY * routed, launches + COPY_LAUNCHES
    else:
        rows = COPY * (expert_tokens(call, layout) * received_share(experts, layout, dispatcher) + routed)
    if kernels.pads and dispatcher is not ExpertDispatcher.HYBRIDEP and not kernels.fused:
        rows, launches = rows + 2 * COPY * routed, launches + COPY_LAUNCHES
    width = experts.token_width(call.hidden_size)
    size_bytes = rows * width * call.element_bytes
    # Expert outputs are not kept: router probabilities scale what enters the second product. Source: Megatron-LM,
    # megatron/core/transformer/moe/experts.py, weighted_bias_swiglu_impl.
    kept = routed * width * call.element_bytes
    kept += call.unsplit_tokens * experts.latent_size * call.element_bytes  # the sums that are projected back
    kept += call.tokens * experts.num_experts * FP32_BYTES
    return stream(
        "token_permutation",
        Module.DISPATCH,
        call,
        (size_bytes, size_bytes),
        (launches + counting[0], launches + counting[1]),
        keeps=(Kept(Role.ROUTED, kept),),
    )


def _latent_projections(
    model: Architecture, experts: MixtureOfExperts, call: LayerCall, normed: Reads
) -> tuple[list[Row], list[Row]]:
    """Return the projections of a rank's own tokens before they travel to their experts, and of their sums back.

    Source: Megatron-LM core/transformer/moe/moe_layer.py, fc1_latent_proj and fc2_latent_proj (whole on every rank).
    """
    if not experts.latent_size:
        return [], []
    wide, narrow, tokens = call.hidden_size, experts.latent_size, call.unsplit_tokens
    biases = (narrow, wide) if model.biases.of_ffn else (0, 0)
    name, shape = "latent_down_projection", (tokens, wide, narrow)
    down = product(name, Module.MLP, "ffn_up", shape, Split.WHOLE, normed, biases[0])
    name, shape, reads = "latent_up_projection", (tokens, narrow, wide), Reads(Role.ROUTED, tokens * narrow)
    up = product(name, Module.MLP, "ffn_down", shape, Split.WHOLE, reads, biases[1])
    return [down], [up]


def experts_rows(model: Architecture, call: LayerCall, layout: Layout, kernels: ExpertKernels) -> list[Row]:
    """Return the rows of a layer with experts in place of its FFN, but for the exchange of tokens."""
    experts = model.experts
    assert experts is not None
    normed = Reads(Role.NORMED, call.unsplit_tokens * call.hidden_size, shared=True)  # the router keeps it
    before, behind = _latent_projections(model, experts, call, normed)
    shape = (call.unsplit_tokens, call.hidden_size, experts.num_experts)
    gate = call.hidden_size * experts.shared_expert_gate + (experts.num_experts if experts.router_bias else 0)
    scores = call.unsplit_tokens * experts.num_experts * SCORE_BYTES
    rows = [
        product("router_projection", Module.ROUTER, "ffn_up", shape, Split.WHOLE, biases=gate),
        stream("router", Module.ROUTER, call, (scores, scores), (ROUTER_LAUNCHES, ROUTER_LAUNCHES)),
        *before,
        _permutation(experts, call, layout, kernels),
        *_routed(model, call, layout, kernels),
        *behind,
    ]
    if experts.shared_expert_ffn_hidden_size:
        width = experts.shared_expert_ffn_hidden_size // call.tensor_parallel_size
        rows += ffn(model, Module.SHARED_EXPERTS, call, width, normed)
    return rows
