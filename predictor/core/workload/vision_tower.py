"""The passes of a vision tower on the first stage: patches, its layers, the projection to the text's tokens.

Layers are those of a transformer without causal mask over an image's patches. A tower that is not trained has no
backward pass, and keeps nothing for one. Its layers are not recomputed, and run in 16 bits.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.core.blocks.mixers import LayerKind
from predictor.core.workload.layer import layer_of
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.switches import Activation, Biases, Positions
from predictor.core.workload.tasks import NO_TASKS, Overlap, PassTasks, scaled, shaped_task
from predictor.core.workload.transformer import Transformer
from predictor.core.workload.vision import Vision

LAYER = LayerKind()


def trains(run: TrainingRun, vision: Vision) -> bool:
    """Return whether a run updates the tower's weights; beside adapters it does not."""
    return vision.trained and run.lora is None


def tower_run(run: TrainingRun, vision: Vision) -> TrainingRun:
    """Return the run of the tower alone: a transformer over the patches of a micro-batch's images."""
    model = Transformer(
        num_layers=vision.num_layers,
        hidden_size=vision.hidden_size,
        num_attention_heads=vision.num_attention_heads,
        ffn_hidden_size=vision.ffn_hidden_size,
        sequence_length=vision.patches,
        vocab_size=1,
        activation=Activation.SWIGLU if vision.gated else Activation.GELU,
        normalization=vision.normalization,
        causal=False,
        rotary_fraction=0.0,
        positions=Positions.NONE,
        biases=Biases.ALL if vision.biases else Biases.NONE,
        fused_side_kernels=run.model.fused_side_kernels,
        measured_kernels=run.model.measured_kernels,
    )
    images = run.micro_batch_size * vision.images_per_sample
    return replace(run, model=model, micro_batch_size=images, recompute=Recompute.NONE, gemm_recipe=None, lora=None)


def _times(step_pass: PassTasks, count: float) -> PassTasks:
    """Return so many passes, one after the other."""
    overlaps = [
        Overlap(scaled(overlap.traffic, count), scaled(overlap.behind, count), overlap.slows, overlap.buckets)
        for overlap in step_pass.overlaps
    ]
    return PassTasks(scaled(step_pass.tasks, count), overlaps)


def tower_passes(run: TrainingRun) -> tuple[PassTasks, PassTasks]:
    """Return forward and backward pass of the tower; nothing where the model has none."""
    vision = run.model.vision
    if vision is None:
        return NO_TASKS, NO_TASKS
    tower = tower_run(run, vision)
    images = tower.micro_batch_size
    tokens = images * vision.image_tokens
    ends = [("patch_embedding", (images * vision.patches, vision.patch_inputs, vision.hidden_size))]
    ends += [("vision_projection", (tokens, *sizes)) for sizes in vision.projection_matrices(run.model.hidden_size)]
    passes, layer = [], layer_of(tower, LAYER).passes
    for one_pass in (layer.forward, layer.backward):
        layers = _times(one_pass, float(vision.num_layers))
        direction = layers.tasks[0].direction
        products = [shaped_task("attention_output", shape, direction)._replace(name=name) for name, shape in ends]
        passes.append(PassTasks(products, []) + layers)
    return passes[0], passes[1] if trains(run, vision) else NO_TASKS


def tower_kept(run: TrainingRun) -> float:
    """Return the bytes that the tower keeps per micro-batch from its forward to its backward pass."""
    vision = run.model.vision
    if vision is None or not trains(run, vision):
        return 0.0
    return vision.num_layers * layer_of(tower_run(run, vision), LAYER).kept_and_recomputed[0]
