"""What runs share is the same in all of them: fields that their keys leave out change no row, pass or parameter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest

from predictor.core.blocks.layer import LayerSettings, layer_rows
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.costs.operator import DATA_GRADIENT, FP32_WEIGHT_GRADIENT
from predictor.core.schema.presets import preset, preset_names
from predictor.core.transforms.few_bits import QuantizedBase
from predictor.core.transforms.lora import Lora
from predictor.core.workload import edges, layer, layer_table
from predictor.core.workload import run as run_module
from predictor.core.workload.architecture import Architecture
from predictor.core.workload.edges import edge_block
from predictor.core.workload.encoder import Encoder
from predictor.core.workload.expert_exchange import ExpertDispatcher
from predictor.core.workload.layer import OF_A_LAYER, layer_of
from predictor.core.workload.layout import Layout
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import (
    AttentionKernel,
    Conditions,
    GemmRecipe,
    GraphModule,
    OffloadModule,
    Optimizer,
    Recompute,
    RecomputeModule,
    Reference,
)
from predictor.core.workload.software import Framework
from predictor.core.workload.switches import Ffn, Loss, Positions
from predictor.core.workload.transformer import OUTSIDE_A_LAYER, Transformer
from predictor.core.workload.vision import Vision
from tests.unit.core.workload.test_token_mixers import run_of
from tests.unit.examples import model_of

VISION = Vision(
    num_layers=4, hidden_size=256, ffn_hidden_size=1024, num_attention_heads=4, patch_size=14, image_size=224,
    tokens_per_image=64, images_per_sample=2,
)  # fmt: skip


def others_beside_a_layer(model: Transformer) -> dict[str, dict[str, Any]]:
    """Return changes of the fields that say which layers a model has and what stands around them."""
    layers, beside = model.num_layers, model.other_parameters
    rest = (beside + 1) % layers
    return {
        # A layer has its share of the model's other parameters, so that more layers share more of them.
        "num_layers": {"num_layers": 2 * layers, "other_parameters": 2 * beside},
        "other_parameters": {"other_parameters": beside // layers * layers + rest},
        "vocab_size": {"vocab_size": model.vocab_size + 1000},
        "num_position_embeddings": {"num_position_embeddings": 777},
        "embedding_norm": {"embedding_norm": not model.embedding_norm},
        "final_norm": {"final_norm": not model.final_norm},
        "positions": {"positions": Positions.NONE if model.positions is None else None},
        "lm_head_bias": {"lm_head_bias": not model.lm_head_bias},
        "lm_head_transform": {"lm_head_transform": not model.lm_head_transform},
        "num_mtp_layers": {"num_mtp_layers": model.num_mtp_layers + 1},
        "encoder": {"encoder": Encoder() if model.encoder is None else None},
        "vision": {"vision": VISION},
        "tied_embeddings": {"tied_embeddings": not model.tied_embeddings},
        "loss": {"loss": Loss.TORCH if model.loss is not Loss.TORCH else Loss.VOCABULARY_PARALLEL},
        "layer_types": {"layer_types": (Mixer.FULL, Mixer.NONE)},
        "ffn_types": {"ffn_types": (Ffn.NONE, Ffn.DENSE, Ffn.DENSE)},
        "rotary_layers": {"rotary_layers": (True, False, True)},
        "sliding_window_layers": {"sliding_window_layers": 1},
    }


@cache
def model(name: str) -> Transformer:
    return model_of(preset(name))


@pytest.mark.parametrize("name", preset_names())
def test_rows_of_a_block_depend_on_the_sizes_of_a_layer_alone(name: str) -> None:
    ours = model(name)
    run = run_of(ours, 2 if ours.splits_layers else 1)
    changes = others_beside_a_layer(ours)
    assert changes.keys() == OUTSIDE_A_LAYER
    for field, change in changes.items():
        other = replace(ours, **change)
        assert getattr(other, field) != getattr(ours, field)
        assert other.layer_sizes == ours.layer_sizes
        for kind in ours.kinds:
            call, settings = run.layer_call(kind), LayerSettings(run.layout)
            assert layer_rows(other, kind, call, settings) == layer_rows(ours, kind, call, settings), field
            assert other.layer_rows(kind) == ours.layer_rows(kind), field


def test_every_other_field_of_a_model_is_in_the_key_of_its_layers() -> None:
    ours = model(preset_names()[0])
    others = [field.name for field in fields(Architecture) if field.name not in OUTSIDE_A_LAYER]
    value: Any = object()
    for name in others:
        other = replace(ours, **{name: value})
        assert other.layer_sizes != ours.layer_sizes, name
    assert len(others) > 40
    assert replace(ours, other_parameters=ours.other_parameters + ours.num_layers).layer_sizes != ours.layer_sizes


# Another value, or others, of every field of a run but its model and layout.
OF_A_RUN: dict[str, tuple[Any, ...]] = {
    "layers_per_stage": ((1, 1),),
    "micro_batch_size": (1, 4),
    "num_micro_batches": (1, 9),
    "precision": ("fp32",),
    "recompute": tuple(Recompute),
    "schedule": ("1f1b", "zero_bubble_h1", "interleaved_1f1b"),
    "zero_stage": (1, 2, 3),
    "gradient_bucket_elements": (1000,),
    "overlap_gradient_reduction": (True,),
    "blocking_transfers": (False,),
    "partition_activations": (True, False),
    "recompute_stops_early": (True,),
    "synchronize_each_layer": (True,),
    "virtual_pipeline_parallel_size": (2,),
    "sequence_parallel": (True, False),
    "gradient_reduction": ("reduce_scatter",),
    "overlap_parameter_gather": (True,),
    "overlap_tensor_parallel": (True,),
    "fp32_gradients": (True, False),
    "overlap_linear_traffic": (True, False),
    "zero_group_size": (1,),
    "reshard_after_forward": (False,),
    "prefetch_units": (0,),
    "gather_precision": (None, "fp8", "fp32"),
    "fp32_parameters": (True,),
    "gemm_recipe": (None, GemmRecipe.FP8_DELAYED, GemmRecipe.FP8_TENSORWISE, GemmRecipe.MXFP8, GemmRecipe.NVFP4),
    "transposes_fp8": (False,),
    "layers_in_16_bits_at_start": (1,),
    "layers_in_16_bits_at_end": (1,),
    "tf32": (True,),
    "recompute_num_layers": (1,),
    "recompute_every": (2,),
    "recompute_group_layers": (2,),
    "recompute_modules": ((RecomputeModule.MLP,), (RecomputeModule.MOE, RecomputeModule.CORE_ATTENTION)),
    "compiled": (True, False),
    "fused_gradient_accumulation": (True, False),
    "fp8_attention": (True, False),
    "attention_kernel": (AttentionKernel.FLASH_3,),
    "blocking_launches": (True,),
    "cuda_graphs": (True, (GraphModule.ATTENTION,), (GraphModule.MOE,)),
    "expert_dispatcher": tuple(ExpertDispatcher),
    "overlap_expert_parallel": (True, False),
    "fused_experts": (True,),
    "optimizer": (Optimizer.MUON,),
    "optimizer_state_bytes": (4.0,),
    "framework": (Framework.DEEPSPEED,),
    "layers_per_chunk": (((1, 1),),),
    "offload_optimizer": (0.5,),
    "overlap_optimizer_offload": (True,),
    "host_threads": (1,),
    "host_simd": (False,),
    "pinned_offload": (False,),
    "offload_parameters": (True,),
    "offload_activation_layers": (1,),
    "offload_activations": (True,),
    "overlap_activation_offload": (False,),
    "reference_model": (Reference.SEPARATE,),
    "reference_passes": (3,),
    "host_slowdown": (2.0,),
    "conditions": (Conditions.TUNED, Conditions.ORDINARY),
    "offload_modules": ((OffloadModule.CORE_ATTENTION,),),
    "lora": (
        None,
        Lora(8),
        Lora(16, share_expert_adapters=False),
        Lora(16, share_expert_adapters=False, expert_weights=True),
        Lora(8, dropout=0.1, fp32=True, quantized_base=QuantizedBase.NF4, dora=True),
    ),
}
OF_A_LAYOUT: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (4,),
    "pipeline_parallel_size": (1, 8),
    "data_parallel_size": (16,),
    "gpus_per_node": (2, 4),
    "switched_as": (8,),
    "context_parallel_size": (1, 4),
    "expert_parallel_size": (1, 4),
    "rank_order": (("tp", "pp", "cp", "dp"), ("dp", "tp", "cp", "pp")),
    "gpus_per_domain": (32,),
    "expert_tensor_parallel_size": (1, 4),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sums in products": {"fused_gradient_accumulation": True, "fp32_gradients": True},
    "selective in mxfp8": {
        "gemm_recipe": GemmRecipe.MXFP8,
        "fp8_attention": True,
        "recompute": Recompute.SELECTIVE,
        "sequence_parallel": True,
        "overlap_tensor_parallel": True,
    },
    "compiled per op": {"compiled": True, "recompute": Recompute.PER_OP, "overlap_expert_parallel": True},
    "adapters in chunks": {"lora": Lora(16), "sequence_parallel": True, "overlap_linear_traffic": True},
    "sharded in fp8": {"gemm_recipe": GemmRecipe.FP8_DELAYED, "zero_stage": 3, "gather_precision": "fp8"},
    "recomputed": {
        "recompute": Recompute.FULL,
        "partition_activations": True,
        "schedule": "zero_bubble_h1",
        "gemm_recipe": GemmRecipe.FP8_DELAYED,
        "expert_dispatcher": ExpertDispatcher.HYBRIDEP,
    },
}
MODELS = ("gpt3-175b", "mixtral-8x7b", "deepseek-v3", "gemma3-27b", "nemotron-3-super-120b-a12b", "qwen3-next-80b-a3b")


def other_runs(run: TrainingRun) -> list[tuple[str, TrainingRun]]:
    """Return the run with one thing changed after the other."""
    changed = [(field, replace(run, **{field: value})) for field, values in OF_A_RUN.items() for value in values]
    changed += [
        (field, replace(run, layout=replace(run.layout, **{field: value})))
        for field, values in OF_A_LAYOUT.items()
        for value in values
    ]
    ours = run.model
    changed += [
        (field, replace(run, model=replace(ours, **change))) for field, change in others_beside_a_layer(ours).items()
    ]
    return changed


def laid_out(ours: Transformer) -> Layout:
    """Return a layout of a few of each kind of ranks that can split the model."""
    context = 2 if ours.splits_samples else 1
    experts = 1 if ours.experts is None else 2
    return Layout(
        2 if ours.splits_layers else 1,
        2,
        8,
        gpus_per_node=8,
        context_parallel_size=context,
        expert_parallel_size=experts,
    )


def answers(run: TrainingRun, kind: LayerKind) -> list[object]:
    """Return all that runs may share: of a layer its passes, memory and parameters, and the model's ends."""
    shared, ends = layer_of(run, kind), edge_block(run, is_first=True, is_last=True)
    of_ends = [getattr(ends, field.name) for field in fields(ends)]
    return [shared.passes, shared.kept_and_recomputed, run.layer_parameters(kind), *of_ends]


@contextmanager
def forgetful() -> Iterator[None]:
    """Compute everything anew: nothing is remembered of other runs."""
    with ExitStack() as stack:
        for module in (edges, layer, layer_table, run_module):
            stack.enter_context(patch.object(module, "remembered", lambda memory, key, compute: compute()))
        yield


def same(run: TrainingRun, kind: LayerKind) -> bool:
    """Return whether what runs share is what this run has by itself."""
    shared = answers(run, kind)
    with forgetful():
        return shared == answers(replace(run), kind)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_what_runs_share_is_each_run_s_own(name: str, settings: dict[str, Any]) -> None:
    """Every field of a run changes in turn; what was remembered of the run before must not answer for it."""
    measured = replace(model(name), measured_kernels=frozenset({DATA_GRADIENT, FP32_WEIGHT_GRADIENT}))
    ours = measured if "fused_gradient_accumulation" in settings else model(name)
    run = run_of(ours, layout=laid_out(ours), **settings)
    for kind in run.model.kinds:
        assert same(run, kind)
        for field, other in other_runs(run):
            assert same(other, kind), (field, kind)


def test_every_field_of_a_run_is_changed() -> None:
    assert OF_A_RUN.keys() | {"model", "layout"} == {field.name for field in fields(TrainingRun)}
    assert OF_A_LAYOUT.keys() == {field.name for field in fields(Layout)}
    run = run_of(model("gpt3-175b"))
    assert all(getattr(run, field) != values[-1] for field, values in OF_A_RUN.items() if len(values) == 1)


def test_runs_share_the_layers_that_are_equal() -> None:
    """A change of what no layer depends on makes no other layer."""
    run, kind = run_of(model("mixtral-8x7b"), layout=laid_out(model("mixtral-8x7b"))), LayerKind(ffn=Ffn.EXPERTS)
    once = layer_of(run, kind)
    read = {"micro_batch_size", "schedule", *OF_A_LAYER.__reduce__()[1]}
    for field, values in OF_A_RUN.items():
        if field not in read:
            assert all(layer_of(replace(run, **{field: value}), kind) is once for value in values), field
