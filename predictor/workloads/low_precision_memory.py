"""What low precision changes in a GPU's memory: kept inputs of products, and cast copies of the weights."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.costs.work import PRECISION_BYTES
from predictor.workloads.experts import routed_tokens
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.low_precision import gathers_cast_weights, recipe_of
from predictor.workloads.recipes import Recipe
from predictor.workloads.run import TrainingRun
from predictor.workloads.transformer import LayerKind


def kept_bytes_added(run: TrainingRun, kind: LayerKind, call: LayerCall) -> float:
    """Return the bytes that a layer keeps for its backward pass beyond those of 16-bit activations; negative: fewer.

    Transformer Engine keeps a product's input as it was cast. The attention output's input is kept twice, since
    attention keeps its own 16-bit output. torchao keeps inputs in 16 bits and casts again.
    Source: Transformer Engine, pytorch/module/linear.py, saved tensors; torchao/float8/float8_linear.py.
    """
    recipe = recipe_of(run, kind)
    if recipe is None or run.compiled or run.lora is not None:  # what adapters read is kept in 16 bits
        return 0.0
    saved = call.element_bytes - recipe.kept
    inputs = call.unsplit_tokens * call.hidden_size
    attention = call.tokens * call.attention_width * recipe.kept - inputs * saved
    if not kind.has_experts or run.model.experts is None:
        return attention - (inputs + call.tokens * call.ffn_width) * saved
    return attention - _expert_inputs(run, call) * saved


def _expert_inputs(run: TrainingRun, call: LayerCall) -> float:
    """Return the elements of the inputs of routed and shared experts' products."""
    experts, tp = run.model.experts, call.tensor_parallel_size
    assert experts is not None
    routed = routed_tokens(experts, call, run.layout)
    shared = experts.shared_expert_ffn_hidden_size // tp
    of_shared = call.unsplit_tokens * call.hidden_size + call.tokens * shared if shared else 0.0
    return routed * (call.hidden_size + experts.expert_ffn_hidden_size // run.layout.expert_split) + of_shared


def cast_weights(run: TrainingRun, layers: Iterable[tuple[LayerKind, int]]) -> float:
    """Return the bytes of the cast weights that a stage's rank keeps between micro-batches, beyond its 16-bit weights.

    Without sharded weights Transformer Engine keeps both layouts of every cast weight. Weights that are gathered cast
    are the only ones: two layouts of 8 bits in place of 16 bits.
    """
    if run.gemm_recipe is None or run.zero_stage >= 3 or run.compiled:
        return 0.0
    size_bytes = 0.0
    for kind, count in layers:
        recipe = recipe_of(run, kind)
        if recipe is not None:
            size_bytes += count * run.layer_parameters(kind).held.total * _weight_bytes(run, recipe)
    return size_bytes


def _weight_bytes(run: TrainingRun, recipe: Recipe) -> float:
    """Return the bytes of a cast weight beyond those of one in the step's precision.

    Beside adapters, weights that are stored cast have one layout: the other is made where it is needed. Source: MLPerf
    Training v4.0, NVIDIA, llama2_70b_lora, megatron_gpt_peft_tuning_config.yaml; Megatron-Bridge, llama3 LoRA recipes
    (disable_parameter_transpose_cache).
    """
    if run.lora is not None and gathers_cast_weights(run):
        return PRECISION_BYTES[recipe.product] - run.element_bytes
    return recipe.weights - (run.element_bytes if gathers_cast_weights(run) else 0.0)
