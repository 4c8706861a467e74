"""A mixture of experts in place of a layer's FFN: router, exchange of tokens, experts, shared experts.

Every rank of the expert-parallel group holds some of the experts and sees its own tokens, so tokens travel to their
experts and back. The tokens of the busiest rank set the time of all.

Experts' products are priced one by one, as the linear layers of so many rows that they are: Transformer Engine's
GroupedLinear runs one cuBLAS product per expert, over several streams (common/gemm/cublaslt_gemm.cu,
nvte_multi_tensor_gemm). The tables of ``expert_mlp`` do not price them: they are of inference engines' fused kernels,
forward only and of at most 16,384 tokens over all ranks, of which an expert gets hundreds (docs/adr/0027). At the
thousands of a training step they answer, in bf16 and mxfp8, 1.6 to 13 times what cuBLAS takes for the same products.
"""

from __future__ import annotations

from math import ceil

from predictor.costs.operator import Direction
from predictor.workloads.expert_exchange import ExpertDispatcher, exchange_tasks, received_share, routed_share
from predictor.workloads.expert_ranks import expert_tokens
from predictor.workloads.fused import fused_gate
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.layout import Layout
from predictor.workloads.linear_layers import EXPERT_DOWN, EXPERT_UP, LATENT_DOWN, LATENT_UP
from predictor.workloads.run import TrainingRun
from predictor.workloads.tasks import (
    BACKWARD,
    Overlap,
    PassTasks,
    Task,
    scalar_task,
    scaled,
    shaped_task,
    stream_task,
)
from predictor.workloads.transformer import LayerKind, MixtureOfExperts, Transformer

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
# What has an expert's tokens as rows.
COUNTED = frozenset({EXPERT_UP, EXPERT_DOWN, "expert_casts", "expert_biases"})
# What the host keeps for each expert beside a product, in launches: half of 1.2 ms forward and 2.1 ms backward for two
# fused products of 64 experts on GB200, over the host's time of a launch. Backward, alone, it is the third launch of a
# linear layer. A product alone takes the host 33 µs (8 of 128 rows: 0.27 ms on SM100), which is a launch.
# Source: github.com/NVIDIA/TransformerEngine, issue 2897 and pull request 3134.
KEPT_PER_EXPERT = (0.3, 0.6)


def routed_tokens(experts: MixtureOfExperts, call: LayerCall, layout: Layout) -> float:
    """Return the tokens that the busiest rank's experts see: as many as it sends where the load is even."""
    return expert_tokens(call, layout) * routed_share(experts, layout)


def _activation(
    model: Transformer, call: LayerCall, shape: tuple[int, int], direction: Direction, times: float
) -> Task:
    """Return the non-linearity over (tokens, width), so many times over."""
    gated = model.activation.gated
    if gated and model.fused_side_kernels:
        return fused_gate(model, call, shape, direction, times)
    return shaped_task("swiglu" if gated else "gelu", shape, direction, times)


def _products(
    model: Transformer, names: tuple[str, str], shape: tuple[int, int, int], direction: Direction, times: float
) -> list[Task]:
    """Return both products of an FFN of (tokens, hidden, width), so many times over."""
    tokens, hidden, width = shape
    up, down = names
    columns = width * (2 if model.activation.gated else 1)
    return [
        shaped_task("ffn_up", (tokens, hidden, columns), direction, times)._replace(name=up),
        shaped_task("ffn_down", (tokens, width, hidden), direction, times)._replace(name=down),
    ]


def shared_expert_tasks(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the FFN of the experts that all tokens visit; none without them."""
    experts = model.experts
    if experts is None or not experts.shared_expert_ffn_hidden_size:
        return []
    width = experts.shared_expert_ffn_hidden_size // call.tensor_parallel_size
    up, down = _products(model, ("ffn_up", "ffn_down"), (call.tokens, call.hidden_size, width), direction, 1.0)
    return [up, _activation(model, call, (call.tokens, width), direction, 1.0), down]


def _routed_ffn(run: TrainingRun, call: LayerCall, direction: Direction, rows: int, held: int) -> list[Task]:
    """Return the FFNs of a rank's experts, with ``rows`` tokens each.

    Fused, gate, biases and clamps run in the products' epilogues, one kernel per product for all experts.
    Source: Transformer Engine, pytorch/ops/fused/forward_grouped_mlp.py; cudnn-frontend, grouped_gemm_glu.
    """
    model, back = run.model, direction is BACKWARD
    experts = model.experts
    assert experts is not None
    width = experts.expert_ffn_hidden_size // run.layout.expert_split
    token_width = experts.token_width(call.hidden_size)
    up, down = _products(model, (EXPERT_UP, EXPERT_DOWN), (rows, token_width, width), direction, held)
    if run.fused_experts:
        launches = 1.0 + back + held * KEPT_PER_EXPERT[back]
        return [task._replace(launches=launches) for task in (up, down)]
    if not back:
        up, down = (task._replace(launches=task.launches + held * KEPT_PER_EXPERT[back]) for task in (up, down))
    # One kernel for all experts' rows, which lie one behind the other.
    activation = _activation(model, call, (rows * held, width), direction, 1.0)
    tasks = [up, activation, down]
    if experts.activation_clamp is not None:
        tasks += _clamp(rows * held * width, call, back)
    if model.biases.of_ffn:
        tasks += _biases(rows * held * token_width, call, back, held)
    return tasks


def _clamp(elements: int, call: LayerCall, back: bool) -> list[Task]:
    """Return the clamps of a gate's halves over the inner width, and joining them."""
    kernels = CLAMP_KERNELS[back]
    return [
        scalar_task("activation_clamp", elements, elements * CLAMP_KERNEL_BYTES[back], kernels, launches=kernels),
        stream_task("activation_clamp", elements * CLAMP_BYTES[back], call, launches=CLAMP_LAUNCHES[back]),
    ]


def _biases(elements: int, call: LayerCall, back: bool, held: int) -> list[Task]:
    """Return the addition of weighted biases to the output of a rank's experts."""
    launches = held * BIAS_LAUNCHES_PER_EXPERT[back] + BIAS_LAUNCHES[back]
    return [
        scalar_task("expert_biases", elements, elements * BIAS_KERNEL_BYTES[back], BIAS_KERNELS[back], launches=0),
        stream_task("expert_biases", elements * BIAS_BYTES[back], call, launches),
    ]


def _permutation(run: TrainingRun, call: LayerCall, direction: Direction, held: int) -> Task:
    """Return the copies of tokens into the order of their experts and, weighted, back; backward the same in turn.

    An all-to-all sends rows in the order of the ranks, so that rows of several experts are sorted where they arrive.
    DeepEP, HybridEP and a gather deliver tokens, which are copied once for each expert on the rank. Products in 8 or 4
    bits need rows in multiples of 16 or 32: HybridEP copies them so, the others pad, and cut again.
    Source: Megatron-LM core/transformer/moe/token_dispatcher.py; moe/experts.py, quantization_padding.
    """
    experts, dispatcher = run.model.experts, run.expert_dispatcher
    assert experts is not None
    routed = routed_tokens(experts, call, run.layout)
    launches = PERMUTATION_LAUNCHES
    if dispatcher is ExpertDispatcher.ALL_TO_ALL:
        launches += COUNTING_LAUNCHES[direction is BACKWARD] if run.layout.expert_parallel_size > 1 else 0
        rows = COPY * call.unsplit_tokens * (1.0 + routed_share(experts, run.layout))
        if held > 1:
            rows, launches = rows + 2 * COPY * routed, launches + COPY_LAUNCHES
    else:
        rows = COPY * (expert_tokens(call, run.layout) * received_share(experts, run.layout, dispatcher) + routed)
    if run.gemm_recipe is not None and dispatcher is not ExpertDispatcher.HYBRIDEP and not run.fused_experts:
        rows, launches = rows + 2 * COPY * routed, launches + COPY_LAUNCHES
    size_bytes = rows * experts.token_width(call.hidden_size) * call.element_bytes
    return stream_task("token_permutation", size_bytes, call, launches=launches)


def _latent_projections(experts: MixtureOfExperts, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the projections of a rank's own tokens before they travel to their experts, and of their sums back.

    Source: Megatron-LM core/transformer/moe/moe_layer.py, fc1_latent_proj and fc2_latent_proj (whole on every rank).
    """
    if not experts.latent_size:
        return []
    wide, narrow = call.hidden_size, experts.latent_size
    return [
        shaped_task("ffn_up", (call.unsplit_tokens, wide, narrow), direction)._replace(name=LATENT_DOWN),
        shaped_task("ffn_down", (call.unsplit_tokens, narrow, wide), direction)._replace(name=LATENT_UP),
    ]


def counted_tasks(run: TrainingRun, kind: LayerKind, tasks: list[Task]) -> list[Task]:
    """Return the tasks of a forward pass that the host launches only once it knows the tokens of every expert.

    It reads them from the device, for sizes of products; with a capacity they are known. Backward it remembers them.
    Source: Megatron-LM core/transformer/moe/token_dispatcher.py, _maybe_dtoh_and_synchronize; experts.py,
    tokens_per_expert.tolist().
    """
    experts = run.model.experts
    if experts is None or not kind.has_experts or experts.capacity_factor is not None:
        return []
    return [task for task in tasks if task.name in COUNTED]


def expert_tasks(run: TrainingRun, call: LayerCall, direction: Direction) -> list[Task]:
    """Return what a layer with experts runs instead of its FFN, but for the exchange of tokens.

    Source: Lepikhin et al. 2020, arXiv:2006.16668; Megatron-LM core/transformer/moe.
    """
    experts = run.model.experts
    assert experts is not None
    held = experts.num_experts // run.layout.expert_parallel_size
    rows = max(1, ceil(routed_tokens(experts, call, run.layout) / held))
    scored = (call.unsplit_tokens, call.hidden_size, experts.num_experts)
    tasks = [shaped_task("ffn_up", scored, direction)._replace(name="router_projection")]
    tasks += _routed_ffn(run, call, direction, rows, held)
    tasks += shared_expert_tasks(run.model, call, direction)
    scores = call.unsplit_tokens * experts.num_experts * SCORE_BYTES
    tasks.append(stream_task("router", scores, call, launches=ROUTER_LAUNCHES))
    tasks.append(_permutation(run, call, direction, held))
    return tasks + _latent_projections(experts, call, direction)


def exchange(run: TrainingRun, call: LayerCall, computing: list[Task]) -> PassTasks:
    """Return the traffic between a pass and its experts on other ranks, and what of it runs beside computing.

    Overlapped, a micro-batch's forward pass runs beside the backward pass of an earlier one, and the traffic of either
    beside the products of the other. The first forward and the last backward passes of a rank have nothing beside them,
    as many as warm its pipeline up. Source: Megatron-LM core/pipeline_parallel/combined_1f1b.py.
    """
    experts = run.model.experts
    assert experts is not None
    traffic = exchange_tasks(experts, call, run.layout, run.expert_dispatcher)
    if not (run.overlap_expert_parallel and traffic):
        return PassTasks(traffic, [])
    alone = min(1.0, run.layout.pipeline_parallel_size / run.num_micro_batches)
    hidden = Overlap(scaled(traffic, 1.0 - alone), computing, slows=True)
    return PassTasks(scaled(traffic, alone), [hidden] if alone < 1.0 else [])
