"""Low precision in a step: which products run in it, and what casting their operands adds.

A recipe covers the linear layers of a transformer layer, experts included, in all three products: output, gradient of
the data, gradient of the weights. Attention, norms, activations, the router, embedding, output projection and loss stay
in 16 bits, as do all activations and gradients between layers; weights are updated in fp32.
Source: Micikevicius et al. 2022, arXiv:2209.05433; Transformer Engine user guide, "Low precision training".
"""

from __future__ import annotations

from predictor.costs.operator import BOTH, Direction, in_precision
from predictor.costs.work import PRECISION_BYTES
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.linear_layers import COLUMN_PARALLEL, EXPERT_DOWN, EXPERT_UP, WHOLE_ON_RANK
from predictor.workloads.recipes import ONE_LAYOUT, READ, RECIPES, Casts, Recipe
from predictor.workloads.run import TrainingRun
from predictor.workloads.tasks import BACKWARD, FORWARD, Part, Task, in_ffn, parameter_stream_task, stream_task
from predictor.workloads.transformer import LayerKind

LINEAR = "linear"
# Scores experts in 16 bits or more.
ROUTER = "router_projection"


def recipe_of(run: TrainingRun, kind: LayerKind) -> Recipe | None:
    """Return the recipe of a kind of layer; None where its products run in the step's precision."""
    if run.gemm_recipe is None or kind.in_16_bits:
        return None
    plain = RECIPES[run.gemm_recipe]
    return plain if run.transposes_fp8 or run.compiled else ONE_LAYOUT.get(run.gemm_recipe, plain)


def casts(run: TrainingRun, recipe: Recipe) -> Casts:
    """Return what casting costs: torchao's kernels where the model is compiled, else Transformer Engine's."""
    return recipe.torchao if run.compiled else recipe.transformer_engine


def _is_covered(task: Task) -> bool:
    return task.operator.family == LINEAR and task.name != ROUTER


def _cast_launches(cost: Casts, task: Task) -> float:
    """Return the kernels of a cast: for each of a rank's experts, unless one casts all.

    Source: Transformer Engine, pytorch/csrc/extensions/cast.cpp, multi_tensor_quantize_impl: one kernel for all tensors
    with delayed scaling, else "quantize kernels individually".
    """
    return cost.launches * (min(task.times, 1.0) if cost.grouped else task.times)


def _casts_itself(run: TrainingRun, task: Task) -> bool:
    """Return whether the operand comes cast from the fused product before: between an expert's two."""
    return run.fused_experts and task.name == (EXPERT_DOWN if task.direction is FORWARD else EXPERT_UP)


def _operand_casts(run: TrainingRun, recipe: Recipe, call: LayerCall, task: Task) -> Task:
    """Return the cast of a product's input, or backward of the gradient of its output.

    With sequence parallelism a rank casts its own share of the tokens before they are gathered.
    """
    m, k, n = task.shape
    cost = casts(run, recipe)
    gathered = task.name in COLUMN_PARALLEL if task.direction is FORWARD else task.name not in COLUMN_PARALLEL
    share = call.unsplit_tokens / call.tokens if gathered and task.name not in WHOLE_ON_RANK else 1.0
    if task.direction is BACKWARD:
        per_element, elements = cost.gradient, m * n
    else:
        per_element = cost.normalized if task.name in COLUMN_PARALLEL else cost.activation
        elements = m * k
    size_bytes = per_element * elements * share * task.times
    of_experts = task.name in (EXPERT_UP, EXPERT_DOWN)
    launches = cost.launches if of_experts and run.fused_experts else _cast_launches(cost, task)
    return stream_task("expert_casts" if of_experts else "operand_casts", size_bytes, call, launches=launches)


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


def _weight_casts(run: TrainingRun, recipe: Recipe, call: LayerCall, task: Task) -> list[Task]:
    """Return the cast of a product's weights in a pass; none where it happens once a step."""
    per_element = 0.0 if keeps_cast_weights(run) else _weight_bytes(run, recipe, task.direction)
    if not per_element:
        return []
    _, k, n = task.shape
    launches = _cast_launches(casts(run, recipe), task)
    return [stream_task("weight_casts", per_element * k * n * task.times, call, launches=launches)]


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


def with_low_precision(
    run: TrainingRun, kind: LayerKind, call: LayerCall, direction: Direction, tasks: list[Task]
) -> list[Task]:
    """Return a layer's operators with its products in the recipe's precision, and the casts of their operands."""
    recipe = recipe_of(run, kind)
    if recipe is None:
        return tasks
    products = [task for task in tasks if _is_covered(task)]
    added: list[Task] = []
    for task in products:
        casting = [] if _casts_itself(run, task) else [_operand_casts(run, recipe, call, task)]
        casting += _weight_casts(run, recipe, call, task)
        added += in_ffn(casting) if task.of_ffn else casting
    lowered = [
        task._replace(operator=in_precision(task.operator, recipe.product)) if _is_covered(task) else task
        for task in tasks
    ]
    return lowered + added


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


def product_precision(run: TrainingRun) -> str:
    """Return the precision of the run's linear layers."""
    if run.gemm_recipe is not None:
        return RECIPES[run.gemm_recipe].product
    return "tf32" if run.tf32 and run.precision == "fp32" else run.precision
