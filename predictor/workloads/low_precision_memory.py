"""What low precision changes in a GPU's memory: kept inputs of products, and cast copies of the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from predictor.costs.work import PRECISION_BYTES
from predictor.workloads.attention_precision import attention_elements, attention_recipe
from predictor.workloads.experts import routed_tokens
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.low_precision import gathers_cast_weights, recipe_of
from predictor.workloads.mixers.linear import Split
from predictor.workloads.recipes import Recipe
from predictor.workloads.recompute import modules
from predictor.workloads.run import Recompute, RecomputeModule, TrainingRun
from predictor.workloads.switches import Ffn
from predictor.workloads.transformer import LayerKind


def kept_added(run: TrainingRun, kind: LayerKind, call: LayerCall) -> dict[str, float]:
    """Return the bytes that a layer keeps beyond those of 16-bit activations, by field of ``Kept``; negative: fewer.

    Transformer Engine keeps a product's input as it was cast, one copy for each product that reads it. The attention
    output's input is kept twice, since attention keeps its own output; and the router's too, beside that of shared
    experts. torchao keeps inputs in 16 bits and casts again.
    Source: Transformer Engine, pytorch/module/linear.py, saved tensors; torchao/float8/float8_linear.py.
    """
    recipe = recipe_of(run, kind)
    if recipe is None or run.compiled:
        return {}
    added = Counter(_attention_added(run, kind, call))
    if run.lora is None:  # what adapters read is kept in 16 bits
        added.update(_mixer_added(run, kind, call, recipe))
        added.update(_ffn_added(run, kind, call, recipe))
    return dict(added)


def _mixer_added(run: TrainingRun, kind: LayerKind, call: LayerCall, recipe: Recipe) -> dict[str, float]:
    """Return what the inputs of a token mixer's products add: of the norm's output, of latents, of its own output."""
    model, saved = run.model, call.element_bytes - recipe.kept
    linears = model.mixer_linears(kind.mixer)
    if not linears:
        return {}
    latent = model.latent_of(kind.mixer) is not None
    normed = call.unsplit_tokens * call.hidden_size
    latents = sum(linear.inputs for linear in linears if linear.split is Split.COLUMN) if latent else 0
    outputs = sum(linear.on_rank(call.tensor_parallel_size)[0] for linear in linears if linear.split is Split.ROW)
    keeps_own = kind.mixer.is_attention and not model.attention_output_gate
    copies = 2 if latent else 1  # queries' and keys' down-projections each cast what they read
    return {
        "normed": normed * (copies * recipe.kept - call.element_bytes),
        "latents": -call.unsplit_tokens * latents * saved,
        "core": call.tokens * outputs * (recipe.kept if keeps_own else -saved),
    }


def _ffn_added(run: TrainingRun, kind: LayerKind, call: LayerCall, recipe: Recipe) -> dict[str, float]:
    """Return what the inputs of the FFN's products, or of experts', add."""
    model, saved = run.model, call.element_bytes - recipe.kept
    normed = call.unsplit_tokens * call.hidden_size
    if kind.ffn is Ffn.DENSE:
        return {"normed": -normed * saved, "act": -call.tokens * call.ffn_width * saved}
    if not kind.has_experts or model.experts is None:
        return {}
    experts, routed = model.experts, routed_tokens(model.experts, call, run.layout)
    shared = experts.shared_expert_ffn_hidden_size // call.tensor_parallel_size
    latent = call.unsplit_tokens * experts.latent_size
    copies = (shared > 0) + (latent > 0)  # what reads the norm's output beside the router
    return {
        "routed": -(routed * experts.token_width(call.hidden_size) + latent) * saved,
        "routed_act": -routed * (experts.expert_ffn_hidden_size // run.layout.expert_split) * saved,
        "normed": copies * normed * recipe.kept,
        "shared_act": -call.tokens * shared * saved,
    }


def _attention_added(run: TrainingRun, kind: LayerKind, call: LayerCall) -> dict[str, float]:
    """Return what attention in 8 bits adds: it keeps what it cast, also where its inputs are computed again.

    Where its core is computed again, from inputs in 16 bits, that is not kept.
    """
    recipe = attention_recipe(run, kind)
    if recipe is None or (run.recompute is Recompute.SELECTIVE and RecomputeModule.CORE_ATTENTION in modules(run)):
        return {}
    operands, outputs = attention_elements(run.model, kind, call)
    return {
        "qkv": -operands * float(call.element_bytes),
        "scores": operands * recipe.kept,
        "core": outputs * (recipe.kept_output - call.element_bytes),
    }


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
