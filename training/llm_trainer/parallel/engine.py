"""The training step of a language model whose states or computation ranks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_fabric.strategies import ModelParallelStrategy, ParallelStrategy
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from llm_trainer.config import TrainingConfig
from llm_trainer.exceptions import TrainingError
from llm_trainer.models import TransformerLM
from llm_trainer.models.hugging_face import HEAD, TOKENS
from llm_trainer.parallel import gradients, state
from llm_trainer.parallel.mesh import DATA, PIPELINE, TENSOR, ParallelLayout, check_model, layout_of, make_mesh
from llm_trainer.parallel.pipeline import MicroBatches, Pipeline, cut
from llm_trainer.parallel.sharding import shard_optimizer, shard_weights
from llm_trainer.parallel.tensor import split_tensors
from llm_trainer.training.batches import model_inputs
from llm_trainer.training.engine import Engine
from llm_trainer.training.settings import ranks_of
from model_training_framework.trainer.checkpoint import Snapshot
from model_training_framework.trainer.checkpoint_store import Stored
from model_training_framework.trainer.errors import CheckpointError
from model_training_framework.trainer.sharded import FOLDER
from model_training_framework.trainer.state import TrainerPhase


class LayoutStrategy(ModelParallelStrategy):
    """Fabric's ModelParallelStrategy on a mesh of three axes, pipeline, data and tensor."""

    def __init__(self, layout: ParallelLayout, parallelize: Callable[[nn.Module, DeviceMesh], nn.Module]) -> None:
        """Take a layout, and what splits a module over its mesh."""
        super().__init__(parallelize, layout.data_parallel_size, layout.tensor_parallel_size)
        self._layout = layout

    def setup_environment(self) -> None:
        """Set up the ranks' connections and the mesh."""
        ParallelStrategy.setup_environment(self)
        self._setup_distributed()
        self._device_mesh = make_mesh(self._layout, self.root_device.type)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return over how many ranks samples are shared out, and this one's place."""
        data = self.device_mesh[DATA]
        return {"num_replicas": data.size(), "rank": data.get_local_rank()}


class ParallelEngine(Engine):
    """Trains a language model on a mesh of pipeline, data and tensor ranks.

    Attributes:
        layout: sizes of the axes, and what they do.
        stages: parts of the model on this rank, after ``fit`` began; the whole model without pipeline ranks.
    """

    def __init__(self, training_config: TrainingConfig, experiment_dir: str | Path = ".", **changes: Any) -> None:
        """Prepare the engine; nothing is started before ``fit``.

        Raises:
            TrainingError: the layout does not fit the processes that were started, or torch has no engine for it.
            TrainerError: the devices or the precision cannot be had.
        """
        self.layout = layout_of(training_config, ranks_of(training_config).world_size)
        self._has_mesh = self.layout.is_model_split or self.layout.is_sharded
        self.stages: list[TransformerLM] = []
        self._weights: dict[str, nn.Parameter] = {}
        self._stepped: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._pipeline: Pipeline | None = None
        self._shared_weight: tuple[str, Any] | None = None
        if self.layout.pipeline_parallel_size > 1:
            changes = {**changes, "gradient_accumulation_steps": 1}  # a batch is all micro-batches of a step
        super().__init__(training_config, experiment_dir, **changes)
        if self._has_mesh and self.config.precision == "16-mixed":
            raise TrainingError(
                "amp_dtype is 'float16'; ranks that hold different weights do not agree on the scale of the loss. "
                "Try bfloat16, or zero_stage 0 or 1 without tensor and pipeline parallelism"
            )

    @property
    def mesh(self) -> DeviceMesh:
        """Return the mesh of all ranks, after ``fit`` began."""
        return self.fabric.strategy.device_mesh

    @property
    def data_rank(self) -> int:
        """Return which share of the samples this rank gets."""
        return int(self.random_rank % self.layout.data_parallel_size)

    @property
    def num_data_ranks(self) -> int:
        """Return over how many ranks the samples of a step are shared out."""
        return self.layout.data_parallel_size

    @property
    def random_rank(self) -> int:
        """Return which random numbers training draws: tensor ranks draw alike."""
        return self.ranks.rank // self.layout.tensor_parallel_size

    def make_strategy(self) -> Any:
        """Return Fabric's strategy of the layout."""
        return LayoutStrategy(self.layout, self.parallelize) if self._has_mesh else super().make_strategy()

    def make_data(self, loader: Any, purpose: str) -> Any:
        """Return the batches of a loader; a pipeline takes all micro-batches of a step at once."""
        data = super().make_data(loader, purpose)
        return data if self._pipeline is None else MicroBatches(data, self.layout.num_micro_batches)

    def set_up_model(self, model: nn.Module, optimizer: Optimizer) -> tuple[Any, Any]:
        """Return model and optimizer as the layout splits them; the optimizer must be fresh.

        Raises:
            TrainingError: the layout does not fit the model, or the optimizer has a state.
        """
        check_model(self.layout, model.config)
        if optimizer.state:
            raise TrainingError("optimizer has a state already; give fit() a fresh one")
        if not self._has_mesh:
            model, fabric_optimizer = super().set_up_model(model, optimizer)
            self.stages = [self.module]
            return model, self._share_optimizer(fabric_optimizer, optimizer, None)
        state.broadcast_weights(model, self.fabric.device)
        names = {id(weight): name for name, weight in model.named_parameters()}
        model = self.fabric.setup_module(model)
        if self.config.precision != "32-true" and self.layout.pipeline_parallel_size == 1:
            self._keep_outputs(model)
        self._weights = {name: weight for stage in self.stages for name, weight in stage.named_parameters()}
        if self.layout.pipeline_parallel_size > 1:
            self._join_stages(self.stages[0].config.tie_word_embeddings)
        for group in optimizer.param_groups:
            mine = [names[id(weight)] for weight in group["params"] if names[id(weight)] in self._weights]
            group["params"] = [self._stepped_weight(self._weights[name]) for name in mine]
        group = self.mesh[DATA].get_group()
        return model, self._share_optimizer(self.fabric.setup_optimizers(optimizer), optimizer, group)

    def parallelize(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Split a model over the mesh: layers over pipeline, then tensors, then states over data ranks."""
        layout = self.layout
        if layout.pipeline_parallel_size > 1:
            module = cut(module, layout, mesh[PIPELINE].get_local_rank(), self.fabric.autocast)
        roots: list[Any] = list(module) if isinstance(module, nn.ModuleList) else [module]
        self.module = module
        self.stages = [getattr(root, "model", root) for root in roots]
        for root, stage in zip(roots, self.stages, strict=True):
            root.to(self.fabric.device)
            if layout.tensor_parallel_size > 1:
                split_tensors(stage, mesh[TENSOR])
            if self.training_config.compile_model:
                for layer in stage.layers.values():
                    layer.compile()
            if layout.is_sharded:
                shard_weights(root, stage, mesh[DATA], layout.zero_stage)
        return module

    def _join_stages(self, is_tied: bool) -> None:
        """Connect the stages of a pipeline, and the two copies of a tied embedding."""
        mesh, layout = self.mesh, self.layout
        self._pipeline = Pipeline(self.module, layout, mesh[PIPELINE].get_group(), self.fabric)
        if not is_tied:
            return
        name = TOKENS if TOKENS in self._weights else HEAD if HEAD in self._weights else None
        ranks = mesh.mesh.flatten(1)
        groups = [
            distributed.new_group([int(first), int(last)]) for first, last in zip(ranks[0], ranks[-1], strict=True)
        ]
        if name is not None:
            place = mesh[DATA].get_local_rank() * layout.tensor_parallel_size + mesh[TENSOR].get_local_rank()
            self._weights[TOKENS] = self._weights.pop(name)  # the optimizer knows it by its first name
            self._shared_weight = name, groups[place]

    def _stepped_weight(self, weight: nn.Parameter) -> nn.Parameter:
        """Return what the optimizer changes: a rank's part, as one kernel takes no plain and split tensors together."""
        if not self.layout.is_model_split or not isinstance(weight, DTensor):
            return weight
        part = nn.Parameter(weight.to_local().detach())
        self._stepped.append((weight, part))
        return part

    def _share_optimizer(self, fabric_optimizer: Any, optimizer: Optimizer, group: Any) -> Any:
        """Return an optimizer whose states are shared out over a group, where the layout says so."""
        if self.layout.zero_stage != 1 or self.layout.data_parallel_size == 1:
            return fabric_optimizer
        sharded = shard_optimizer(optimizer, group)
        if self.scheduler is not None:
            self.scheduler.optimizer = sharded
        return self.fabric.setup_optimizers(sharded)

    def forward_backward(self, batch: Any, batch_idx: int, share: float) -> dict[str, Any]:
        """Add the gradients of a batch; with a pipeline, of all micro-batches of the optimizer step."""
        if self._pipeline is None:
            return super().forward_backward(batch, batch_idx, share)
        self._enter(TrainerPhase.TRAIN_BATCH_FORWARD)
        return {"loss": self._pipeline.train([model_inputs(part) for part in batch])}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the mean cross entropy of a batch's next tokens, or of a list of micro-batches."""
        if self._pipeline is None:
            return super().validation_step(batch, batch_idx)
        parts = batch if isinstance(batch, list) else [batch]
        losses = self._pipeline.evaluate([model_inputs(part) for part in parts])
        weigh = super().validation_weight
        weights = losses.new_tensor([weigh(part) for part in parts])
        return {"loss": (losses * weights).sum() / weights.sum()}

    def validation_weight(self, batch: Any) -> int:
        """Return how much a batch, or the micro-batches of a pipeline, counts in a validation's means."""
        weigh = super().validation_weight
        return weigh(batch) if self._pipeline is None else sum(weigh(part) for part in batch)

    def update(self) -> None:
        """Sum gradients over ranks, clip them, step the optimizer and drop them."""
        if self.layout.is_model_split and not self.layout.is_sharded:
            gradients.average(self._weights.values(), self.mesh[DATA].get_group())
        if self._shared_weight is not None:
            gradients.sum_shared(self._weights[TOKENS], self._shared_weight[1])
        for weight, part in self._stepped:
            part.grad = None if weight.grad is None else gradients.local(weight.grad)
        super().update()
        for weight, _ in self._stepped:
            weight.grad = None

    def clip_gradients(self, max_norm: float) -> None:
        """Scale the gradients down to a norm, over all weights of all ranks."""
        if not self._has_mesh:
            super().clip_gradients(max_norm)
            return
        is_copy = self._shared_weight is not None and self._shared_weight[0] == HEAD
        counted = [weight for name, weight in self._weights.items() if not (is_copy and name == TOKENS)]
        norm = gradients.global_norm(counted, self.mesh, self.fabric.device)
        gradients.clip(self._weights.values(), norm, max_norm)

    def state_dict(self) -> dict[str, Any]:
        """Return the layout, which a run that goes on from this one must have."""
        return {**super().state_dict(), "layout": self.layout.describe()}

    def snapshot(self) -> Snapshot:
        """Return everything that a checkpoint keeps; what differs between ranks is each rank's own."""
        content = super().snapshot()
        shared, own = dict(content.shared), dict(content.own)
        if self.layout.is_model_split:
            own["model"], shared["model"] = state.local_state(shared["model"]), {}
        if self.layout.is_model_split or self.layout.zero_stage == 1:
            own["optimizer"], shared["optimizer"] = shared["optimizer"], {}
        return Snapshot(shared, own)

    def read_snapshot(self, stored: Stored) -> Snapshot:
        """Return what ``snapshot`` gave when a checkpoint was written.

        Raises:
            CheckpointError: another layout wrote it.
        """
        has_shards = any(name.startswith(FOLDER) for name in stored.manifest.files)
        content = None
        if has_shards == (self.layout.is_sharded and not self.layout.is_model_split):
            content = super().read_snapshot(stored)
        if content is None or content.shared["trainer"].get("layout") != self.layout.describe():
            raise CheckpointError(
                f"{stored.path} was written in another layout; go on with that layout, or begin in another "
                "checkpoint_dir"
            )
        shared = dict(content.shared)
        if "model" in content.own:
            shared["model"] = state.split_state(content.own["model"], self.module.state_dict())
        if "optimizer" in content.own:
            shared["optimizer"] = content.own["optimizer"]
        return Snapshot(shared, content.own)

    def whole_model(self) -> TransformerLM | None:
        """Return the trained model with all of its weights, on rank 0, and None elsewhere; call it on every rank."""
        if not self._has_mesh:
            return self.module if self.ranks.is_first else None
        weights = state.whole_weights(self.stages, self.mesh, self.ranks.group)
        if not self.ranks.is_first:
            return None
        model = TransformerLM(self.stages[0].config)
        model.load_state_dict(weights)
        return model
