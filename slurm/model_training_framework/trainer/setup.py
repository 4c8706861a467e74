"""Set up devices, ranks, model and optimizer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic
from lightning_fabric import Fabric
from lightning_fabric.plugins import Precision
from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

from model_training_framework.trainer.config import GenericTrainerConfig
from model_training_framework.trainer.errors import TrainerError

Parallelize = Callable[[Any, Any], Any]


class ShardingStrategy(ModelParallelStrategy):  # type: ignore[misc]
    """Shards a model over all ranks."""

    def setup_environment(self) -> None:
        """Set up the ranks' connections, and a mesh of all ranks on the data axis."""
        self._data_parallel_size = self.num_processes * self.num_nodes
        super().setup_environment()


def sharding_strategy(parallelize: Parallelize) -> ModelParallelStrategy:
    """Return the strategy that shards a module over a device mesh with ``parallelize``."""
    return ShardingStrategy(parallelize, data_parallel_size=1, tensor_parallel_size=1)


def make_fabric(config: GenericTrainerConfig, strategy: Any) -> Fabric:
    """Return the engine for a configuration.

    Args:
        config: its accelerator, devices, num_nodes and precision count.
        strategy: a name or an object that Fabric takes.

    Raises:
        TrainerError: Fabric does not accept them; the message is its own.
    """
    try:
        with warnings.catch_warnings():
            # A run beside an installed Slurm is a choice, not an oversight: the launcher decides how jobs start.
            warnings.filterwarnings("ignore", message="The `srun` command is available on your system but is not used")
            return Fabric(
                accelerator=config.accelerator,
                devices=config.devices,
                num_nodes=config.num_nodes,
                precision=config.precision,
                strategy=strategy,
            )
    except (ValueError, RuntimeError, TypeError, ImportError) as error:
        raise TrainerError(
            f"accelerator {config.accelerator}, devices {config.devices}, precision {config.precision}, "
            f"strategy {config.strategy}: {str(error).splitlines()[0]}"
        ) from error


def is_sharding(fabric: Any) -> bool:
    """Return whether weights are sharded tensors."""
    return isinstance(fabric.strategy, ModelParallelStrategy)


def is_replicating(fabric: Any) -> bool:
    """Return whether several ranks hold the same weights (DDP)."""
    return isinstance(fabric.strategy, DDPStrategy)


def shard_fully(module: nn.Module, mesh: Any) -> nn.Module:
    """Shard a module over the data-parallel ranks: every block of a ModuleList by itself, and what is left.

    Source: torch.distributed.fsdp.fully_shard, "apply bottom-up".
    """
    data_parallel = mesh["data_parallel"]
    for part in list(module.modules()):
        if isinstance(part, nn.ModuleList):
            for block in part:
                fully_shard(block, mesh=data_parallel)
    fully_shard(module, mesh=data_parallel)
    return module


def set_up_sharded(fabric: Any, module: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    """Shard a model, and point its optimizer, which has no state yet, to the sharded weights.

    Raises:
        TrainerError: the optimizer has a state, or a weight that is not the model's.
    """
    if optimizer.state:
        raise TrainerError("optimizer has a state already; with strategy fsdp give fit() a fresh one")
    names = {id(weight): name for name, weight in module.named_parameters()}
    model = fabric.setup_module(module)
    weights = dict(module.named_parameters())
    for group in optimizer.param_groups:
        try:
            group["params"] = [weights[names[id(weight)]] for weight in group["params"]]
        except KeyError:
            raise TrainerError("optimizer has a weight that is not one of the model's parameters") from None
    return model, fabric.setup_optimizers(optimizer)


def set_up_unsharded(fabric: Any, module: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    """Set up a model and its optimizer without sharding.

    On a single device and in 32-true Fabric's wrapper has nothing to convert and nothing to check in the backward
    pass, and costs 0.1 ms per step; the wrapper then hands its call on to the module as it is.
    """
    model, optimizer = fabric.setup(module, optimizer)
    if type(fabric.strategy) is SingleDeviceStrategy and type(fabric.strategy.precision) is Precision:
        model.__dict__["forward"] = model._forward_module.__call__
    return model, optimizer


@contextmanager
def reproducible(is_deterministic: bool, benchmark: bool) -> Iterator[None]:
    """Use deterministic algorithms, where torch has them, and put torch's settings back at the end."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    if is_deterministic:  # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # a help in debugging that every step would pay for
    torch.backends.cudnn.benchmark = benchmark and not is_deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]
        torch.utils.deterministic.fill_uninitialized_memory = before[3]
