"""What Megatron-LM's fine-grained offloading moves of a layer: the inputs of named modules, as they are kept.

Source: Megatron-LM megatron/core/transformer/transformer_config.py, offload_modules; attention.py and moe/experts.py,
which save inside fine_grained_activation_offload's hooks.
"""

from __future__ import annotations

from predictor.core.blocks.experts import routed_tokens
from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs.layer_call import LayerCall
from predictor.core.folds import KeptBytes
from predictor.core.rows import Module, Role
from predictor.core.transforms.recomputation import modules
from predictor.core.workload.attention_precision import attention_elements, attention_recipe
from predictor.core.workload.kept_activations import kept_of_layer
from predictor.core.workload.low_precision import recipe_of
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import OffloadModule, Recompute, RecomputeModule
from predictor.core.workload.switches import Ffn


def _input_bytes(run: TrainingRun, kind: LayerKind, call: LayerCall) -> float:
    """Return the bytes per element of a product's input: as it was cast, or where adapters read it in 16 bits."""
    recipe = recipe_of(run, kind)
    return float(call.element_bytes) if recipe is None or run.lora is not None else recipe.kept


def _of_attention(run: TrainingRun, kind: LayerKind, call: LayerCall, kept: KeptBytes) -> dict[OffloadModule, float]:
    """Return the inputs of the modules of a layer's attention; other token mixers have none of them."""
    if not kind.mixer.is_attention:
        return {}
    element, again = call.element_bytes, modules(run) if run.recompute is Recompute.SELECTIVE else ()
    stream = float(call.unsplit_tokens * call.hidden_size)
    operands, outputs = attention_elements(run.model, kind, call)
    recipe, per_input = attention_recipe(run, kind), _input_bytes(run, kind, call)
    core = operands * (element if recipe is None else recipe.kept)
    if recipe is None and RecomputeModule.MLA_UP_PROJECTION in again:
        core = 0.0
    normed = 0.0 if RecomputeModule.NORMS in again else stream * per_input
    return {
        OffloadModule.ATTENTION_NORM: stream * element,
        OffloadModule.QKV_PROJECTION: normed + kept.of(Role.LATENT),
        OffloadModule.CORE_ATTENTION: core,
        OffloadModule.ATTENTION_OUTPUT: outputs * per_input,
    }


def _of_ffn(run: TrainingRun, kind: LayerKind, call: LayerCall, kept: KeptBytes) -> dict[OffloadModule, float]:
    """Return the inputs of the FFN's norm, and of the modules of routed experts."""
    has_norm = kind.ffn is not Ffn.NONE and not run.model.parallel_residual
    found = {OffloadModule.MLP_NORM: float(call.unsplit_tokens * call.hidden_size * call.element_bytes * has_norm)}
    experts = run.model.experts
    if not kind.has_experts or experts is None:
        return found
    rows = routed_tokens(experts, call, run.layout) * experts.token_width(call.hidden_size)
    tokens = rows * _input_bytes(run, kind, call) if kept.of(Role.ROUTED) else 0.0  # none where all of it runs again
    inner, activated = (kept.of(role, modules=(Module.EXPERTS,)) for role in (Role.INNER, Role.ACTIVATED))
    return found | {
        OffloadModule.EXPERT_UP: tokens,
        OffloadModule.MOE_ACTIVATION: inner,
        OffloadModule.FUSED_EXPERTS: tokens + inner + activated,
    }


def inputs_of_modules(run: TrainingRun, kind: LayerKind) -> float:
    """Return the bytes of the inputs of a run's offloaded modules that a layer keeps."""
    call, kept = run.layer_call(kind), kept_of_layer(run, kind)
    inputs = _of_attention(run, kind, call, kept) | _of_ffn(run, kind, call, kept)
    return sum(inputs.get(module, 0.0) for module in run.offload_modules)
