"""Host memory: optimizer states that the CPU updates, and activations that travel there and back."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from predictor.core.costs.host_adam import DEEPSPEED_ADAM, TORCH_ADAM
from predictor.core.rows import FP32_BYTES
from predictor.core.workload.offload_modules import inputs_of_modules
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.software import ON_DEEPSPEED
from predictor.core.workload.step_tasks import BlockMemory, HostUpdate
from predictor.core.workload.tasks import FORWARD, TRAFFIC, Overlap, Part, PassTasks, Task, shaped_task
from predictor.core.workload.transformer import LayerKind

# Layers' activations on the GPU while backward passes run: those at work, and those that arrive meanwhile.
# Source: Transformer Engine pytorch/cpu_offload.py, AsyncDoubleBufferGroupOffloadHandler.
BUFFERED_LAYERS = 2


class Update(NamedTuple):
    """Parameters that a rank updates on its GPU, and the update of the others on the host."""

    on_gpu: int
    on_host: HostUpdate | None


def host_copy(name: str, size_bytes: float) -> list[Task]:
    """Return a copy between host memory and the GPU, in either direction; none of nothing."""
    if size_bytes <= 0:
        return []
    return [shaped_task("host_to_device", (ceil(size_bytes),), FORWARD)._replace(name=name, part=Part.HOST_LINK)]


def update(run: TrainingRun, parameters: int) -> Update:
    """Return how a rank updates so many parameters, whose states may be in host memory in part.

    DeepSpeed sends gradients as they are computed, others as the fp32 that the CPU adds to its states; weights come
    back in the precision of the model. Source: Ren et al. 2021, arXiv:2101.06840, section 4; Megatron-LM
    core/optimizer/cpu_offloading/hybrid_optimizer.py, whose CPU optimizer is PyTorch's (core/optimizer/__init__.py).
    """
    moved = round(parameters * run.offload_optimizer)
    if not moved:
        return Update(parameters, None)
    is_deepspeed = run.framework in ON_DEEPSPEED
    adam = DEEPSPEED_ADAM if is_deepspeed else TORCH_ADAM
    return Update(
        parameters - moved,
        HostUpdate(
            host_copy("gradients_to_host", moved * (run.element_bytes if is_deepspeed else FP32_BYTES)),
            [Task(adam.name, adam, FORWARD, (moved,), 1.0, Part.OPTIMIZER, 0)],
            host_copy("weights_from_host", moved * run.element_bytes),
            run.overlap_optimizer_offload,
        ),
    )


def offloaded_share(run: TrainingRun, layers: int) -> float:
    """Return the share of a chunk's activations that travel to host memory."""
    return min(1.0, run.offload_activation_layers / layers) if layers else 0.0


def _beside(step_pass: PassTasks, copies: list[Task]) -> PassTasks:
    """Return a pass with copies beside what it computes."""
    behind = [task for task in step_pass.tasks if task.part not in TRAFFIC]
    return PassTasks(step_pass.tasks, [Overlap(copies, behind, own_link=True), *step_pass.overlaps])


def _moved(run: TrainingRun, kind: LayerKind, kept: float, share: float) -> tuple[float, float]:
    """Return the bytes of a layer's activations that travel to host memory, and those of them on the GPU at once."""
    if run.offload_modules:
        moved = min(kept, inputs_of_modules(run, kind))
        return moved, BUFFERED_LAYERS * moved
    return kept * share, min(BUFFERED_LAYERS, run.offload_activation_layers) * kept


def with_offloading(
    run: TrainingRun, kind: LayerKind, forward: PassTasks, backward: PassTasks, memory: BlockMemory, share: float
) -> tuple[PassTasks, PassTasks, BlockMemory]:
    """Return a layer's passes and memory where some of its activations are in host memory between them.

    The copies of some layers are spread over the computing of all. Source: Transformer Engine pytorch/cpu_offload.py,
    layer_window_map.

    Args:
        run: the run.
        kind: of the layer.
        forward: its forward pass.
        backward: its backward pass.
        memory: what it holds.
        share: of its activations that travel, where no modules are named.
    """
    moved, on_gpu = _moved(run, kind, memory.kept, share)
    if not moved:
        return forward, backward, memory
    return (
        _beside(forward, host_copy("activations_to_host", moved)),
        _beside(backward, host_copy("activations_from_host", moved)),
        memory._replace(kept=memory.kept - moved, working=memory.working + on_gpu),
    )
