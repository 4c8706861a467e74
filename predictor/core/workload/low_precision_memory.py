"""Cast copies of the weights that low precision holds in a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs.work import PRECISION_BYTES
from predictor.core.workload.low_precision import gathers_cast_weights, recipe_of
from predictor.core.workload.recipes import Recipe
from predictor.core.workload.run import TrainingRun


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
