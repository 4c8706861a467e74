"""Low precision of a run: recipe per layer, bytes of its casts, gathers and cast weights."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs.operator import BOTH, Direction
from predictor.core.costs.work import PRECISION_BYTES
from predictor.core.rows import FP32_BYTES
from predictor.core.transforms.few_bits import PACKED_BYTES
from predictor.core.transforms.low_precision import LowPrecision
from predictor.core.workload.recipes import ONE_LAYOUT, READ, RECIPES, Casts, Recipe
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.tasks import BACKWARD, FORWARD, Part, Task, parameter_stream_task


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
            size_bytes += count * run.layer_parameters(kind).held.total * _kept_weight_bytes(run, recipe)
    return size_bytes


def _kept_weight_bytes(run: TrainingRun, recipe: Recipe) -> float:
    """Return the bytes of a cast weight beyond those of one in the step's precision.

    Beside adapters, weights that are stored cast have one layout: the other is made where it is needed. Source: MLPerf
    Training v4.0, NVIDIA, llama2_70b_lora, megatron_gpt_peft_tuning_config.yaml; Megatron-Bridge, llama3 LoRA recipes
    (disable_parameter_transpose_cache).
    """
    if run.lora is not None and gathers_cast_weights(run):
        return PRECISION_BYTES[recipe.product] - run.element_bytes
    return recipe.weights - (run.element_bytes if gathers_cast_weights(run) else 0.0)


def recipe_of(run: TrainingRun, kind: LayerKind) -> Recipe | None:
    """Return the recipe of a kind of layer; None where its products run in the step's precision."""
    if run.gemm_recipe is None or kind.in_16_bits:
        return None
    plain = RECIPES[run.gemm_recipe]
    return plain if run.transposes_fp8 or run.compiled else ONE_LAYOUT.get(run.gemm_recipe, plain)


def casts(run: TrainingRun, recipe: Recipe) -> Casts:
    """Return what casting costs: torchao's kernels where the model is compiled, else Transformer Engine's."""
    return recipe.torchao if run.compiled else recipe.transformer_engine


def gathers_cast_weights(run: TrainingRun) -> bool:
    """Return whether weights are cast where they are updated, and arrive so on the ranks that share them out."""
    return run.gather_precision == "fp8"


def keeps_cast_weights(run: TrainingRun) -> bool:
    """Return whether weights are cast once a step: Transformer Engine keeps them for later micro-batches.

    Weights that are shared out are freed after use, and torchao keeps none. Source: Transformer Engine,
    pytorch/module/base.py, get_weight_workspace; Megatron-LM, is_first_microbatch.
    """
    return run.zero_stage < 3 and not run.compiled


def _weight_bytes(run: TrainingRun, recipe: Recipe, direction: Direction) -> float:
    """Return the bytes per weight of casting it in one pass; of transposing it where it arrives cast."""
    cost = casts(run, recipe)
    if gathers_cast_weights(run):
        return recipe.transposed if direction is BACKWARD else 0.0
    if direction is FORWARD:
        return cost.weight
    return cost.weight_again or (0.0 if keeps_cast_weights(run) else cost.weight)


def layer_precision(run: TrainingRun, kind: LayerKind) -> LowPrecision | None:
    """Return how a kind of layer runs its products in few bits; None where they run in the step's precision."""
    recipe = recipe_of(run, kind)
    if recipe is None:
        return None
    each_pass = (0.0, 0.0)
    if not keeps_cast_weights(run):
        each_pass = _weight_bytes(run, recipe, Direction.FORWARD), _weight_bytes(run, recipe, Direction.BACKWARD)
    keeps_casts = not run.compiled and run.lora is None  # what adapters read is kept in 16 bits
    return LowPrecision(recipe, casts(run, recipe), each_pass, run.fused_experts, keeps_casts)


def step_weight_casts(run: TrainingRun, stage: int) -> list[Task]:
    """Return the casts of a stage's weights once a step, where they are kept cast for all micro-batches."""
    if run.gemm_recipe is None or not keeps_cast_weights(run):
        return []
    size_bytes = 0.0
    for kind, count in run.stage_kinds(stage).items():
        recipe = recipe_of(run, kind)
        if recipe is not None:
            per_weight = sum(_weight_bytes(run, recipe, direction) for direction in BOTH)
            size_bytes += count * run.layer_parameters(kind).held.total * per_weight
    if not size_bytes:
        return []
    return [parameter_stream_task("weight_casts", size_bytes, run.call(), Part.OPTIMIZER)]


def gathered_share(run: TrainingRun, kind: LayerKind) -> float:
    """Return the bytes that tensor-parallel ranks gather over those of 16-bit activations.

    Inputs of column-parallel products and gradients of row-parallel ones are cast before they are gathered.
    Source: Transformer Engine, pytorch/distributed.py, gather_along_first_dim with a quantizer; torchtitan,
    float8 tensor parallelism.
    """
    recipe = recipe_of(run, kind)
    return 1.0 if recipe is None else recipe.gathered / READ


def gather_bytes(run: TrainingRun) -> float:
    """Return the bytes of one weight on its way to other ranks."""
    return PRECISION_BYTES[run.gather_precision or run.precision]


def wire_bytes(run: TrainingRun, parameters: int, narrow: int) -> float:
    """Return the bytes of so many weights on their way to other ranks, of which ``narrow`` travel in few bits.

    What FSDP shards of a base in four bits is its packed parameter, stored as 16-bit numbers
    (``bnb_4bit_quant_storage``). Source: bitsandbytes, docs/source/fsdp_qlora.md.
    """
    return (parameters - narrow) * gather_bytes(run) + _packed(run, narrow)


def _packed(run: TrainingRun, narrow: int) -> float:
    base = None if run.lora is None else run.lora.quantized_base
    return 0.0 if base is None else narrow * PACKED_BYTES[base]


def shard_bytes(run: TrainingRun, parameters: int, narrow: int) -> float:
    """Return the bytes of so many weights as ranks keep them that share them out, ``narrow`` of them in few bits.

    Scales stay on the GPU.
    """
    kept = FP32_BYTES if run.fp32_parameters else run.element_bytes
    return (parameters - narrow) * kept + _packed(run, narrow)


def product_precision(run: TrainingRun) -> str:
    """Return the precision of the run's linear layers."""
    if run.gemm_recipe is not None:
        return RECIPES[run.gemm_recipe].product
    return "tf32" if run.tf32 and run.precision == "fp32" else run.precision
