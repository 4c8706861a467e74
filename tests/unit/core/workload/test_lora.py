"""Adapters: what trains, what a step runs and holds beside full fine-tuning."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.blocks.mamba2 import Mamba2
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.folds import multiplications
from predictor.core.plan.loading import prepare
from predictor.core.rows import Kind, Role
from predictor.core.step.memory import step_memory
from predictor.core.step.prediction import predict
from predictor.core.transforms.lora import Lora, LoraTarget
from predictor.core.workload.layout import Layout
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.switches import Ffn
from predictor.core.workload.tasks import Part
from predictor.core.workload.transformer import MixtureOfExperts, Transformer
from predictor.core.workload.transformer_step import transformer_step
from tests.layers import backward_pass, forward_pass, kept_of
from tests.unit.core.workload.test_token_mixers import LATENT, MODEL, by_name, flops, run_of
from tests.unit.examples import full_form

DENSE, LORA = LayerKind(), Lora(16)
ATTENTION = Lora(16, (LoraTarget.QKV, LoraTarget.ATTENTION_OUTPUT))


def trained(lora: Lora, model: Transformer, kind: LayerKind = DENSE, tensor_parallel_size: int = 1) -> int:
    """The parameters of a layer's adapters on one rank, those of routed experts left out."""
    return run_of(model, tensor_parallel_size, lora=lora).layer_parameters(kind).dense


def test_adapters_of_every_linear_layer() -> None:
    """Rank times inputs and outputs of qkv, attention's output, both matrices of the FFN."""
    widths = (1024 + 3 * 1024), (1024 + 1024), (1024 + 2 * 2816), (2816 + 1024)
    assert trained(LORA, MODEL) == 16 * sum(widths)
    of_latents = (1024 + 384) + (384 + 16 * 192) + (1024 + 192) + (128 + 16 * 256) + (16 * 128 + 1024)
    assert trained(LORA, LATENT) == 16 * (of_latents + widths[2] + widths[3])
    ranks = [trained(LORA, MODEL, LayerKind(), tp) for tp in (1, 2)]
    assert ranks[0] == 2 * ranks[1]


def test_only_adapters_have_gradients_and_optimizer_states() -> None:
    run = run_of(MODEL, lora=LORA, layout=Layout(1, 1, 4, gpus_per_node=8))
    parameters = run.rank_parameters(0)
    assert parameters.total == 8 * trained(LORA, MODEL)
    padding = 2 * (MODEL.embedding_parameters() - MODEL.vocab_size * MODEL.hidden_size)
    assert parameters.held.total == MODEL.num_parameters() + padding + parameters.total
    (stage,) = transformer_step(run).stages
    (whole,) = transformer_step(replace(run, lora=None)).stages
    assert stage.states.optimizer == parameters.total * 12
    assert stage.states.gradients == parameters.total * 2
    assert stage.states.weights == whole.states.weights + parameters.total * 2
    sizes = [
        sum(task.shape[0] * task.times for task in end.calls() if task.name == "all_reduce")
        for end in (stage.end, whole.end)
    ]
    assert sizes[0] == pytest.approx(sizes[1] * parameters.total / (parameters.held.total - parameters.total))


def test_frozen_products_have_no_weight_gradients() -> None:
    run = run_of(MODEL)
    plain, adapted = (flops(backward_pass(of, LayerKind()).tasks) for of in (run, replace(run, lora=LORA)))
    products = [task for task in backward_pass(run, LayerKind()).tasks if task.operator.family == "linear"]
    narrow = [task for task in backward_pass(replace(run, lora=LORA), LayerKind()).tasks if "lora_" in task.name]
    assert adapted == pytest.approx(plain - flops(products) / 2 + flops(narrow))
    forward = by_name(forward_pass(replace(run, lora=LORA), LayerKind()).tasks)
    assert forward["lora_up"].shape == (2 * 4096, 16, 1024)


def test_inputs_of_layers_without_adapters_are_not_kept() -> None:
    run = replace(run_of(MODEL), model=replace(MODEL, fused_side_kernels=True))
    plain, everywhere, attention = (kept_of(replace(run, lora=lora), LayerKind()) for lora in (None, LORA, ATTENTION))
    tokens = 2 * 4096 * 2
    assert everywhere.total == plain.total + 4 * tokens * 16
    assert attention.total == plain.total + 2 * tokens * 16 - tokens * (1024 + 2816)


def test_one_rank_sends_nothing() -> None:
    run = run_of(MODEL, lora=LORA)
    tasks = forward_pass(run, LayerKind()).tasks + backward_pass(run, LayerKind()).tasks
    assert not [task for task in tasks if task.part is Part.TENSOR_PARALLEL]


def predicted(content: dict[str, Any]) -> tuple[float, float, float]:
    """Return a step's time in µs, the bytes of its fullest stage, and the FLOPs of a token."""
    loaded = prepare(content, Path())
    prediction = predict(loaded.run, loaded.system)
    fullest = max(stage.total for stage in step_memory(transformer_step(loaded.run)))
    return prediction.step.us, fullest, loaded.run.model_flops_per_token


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_a_step_with_adapters_is_faster_and_smaller(zero_stage: int) -> None:
    layout = {"data_parallel_size": 4, "zero_stage": zero_stage}
    large = {"micro_batch_size": 8}  # of smaller ones the host's launches, of which adapters add some, set the pace
    full, adapted = (
        predicted(full_form(parallelism=layout, training=large | training)) for training in ({}, {"lora": {"rank": 16}})
    )
    assert adapted[0] < full[0]
    assert adapted[1] < full[1]
    assert 0.6 < adapted[2] / full[2] < 0.8


MOE = MixtureOfExperts(
    num_experts=8,
    experts_per_token=2,
    expert_ffn_hidden_size=512,
    shared_expert_ffn_hidden_size=256,
    load_imbalance=1.0,
)
SPARSE_MODEL, SPARSE = replace(MODEL, experts=MOE), LayerKind(ffn=Ffn.EXPERTS)
OF_EXPERT = (1024 + 2 * 512) + (512 + 1024)


def experts_run(lora: Lora) -> TrainingRun:
    return run_of(SPARSE_MODEL, lora=lora, layout=Layout(1, 1, 4, gpus_per_node=8, expert_parallel_size=4))


def test_experts_share_an_adapter_or_have_one_each() -> None:
    of_shared_expert = (1024 + 2 * 256) + (256 + 1024)
    of_attention = (1024 + 3 * 1024) + (1024 + 1024)
    dense = 16 * (of_attention + of_shared_expert)
    own, narrow = Lora(16, share_expert_adapters=False), Lora(16, normalize_moe_lora=True)
    assert experts_run(Lora(16)).layer_parameters(SPARSE)[:2] == (dense + 16 * OF_EXPERT, 0)
    assert experts_run(own).layer_parameters(SPARSE)[:2] == (dense, 2 * 16 * OF_EXPERT)
    assert experts_run(narrow).layer_parameters(SPARSE)[:2] == (dense + 8 * OF_EXPERT, 0)


def test_adapters_of_experts_run_over_their_rows() -> None:
    rows = 2 * 4096 * 2  # two samples, two experts a token
    tasks = by_name(forward_pass(experts_run(Lora(16)), SPARSE).tasks)
    assert (tasks["expert_lora_down"].shape, tasks["expert_lora_down"].times) == ((rows, 512, 16), 1.0)
    tasks = by_name(forward_pass(experts_run(Lora(16, share_expert_adapters=False)), SPARSE).tasks)
    assert (tasks["expert_lora_up"].shape, tasks["expert_lora_up"].times) == ((rows // 2, 16, 1024), 2.0)
    attention = Lora(16, (LoraTarget.QKV,))
    assert not [task for task in forward_pass(experts_run(attention), SPARSE).tasks if "expert_lora" in task.name]


def test_a_token_s_flops_meet_the_adapters_of_its_experts() -> None:
    own = Lora(16, share_expert_adapters=False)  # which does not count those of the rank's experts as dense
    adapters = 8 * (trained(own, SPARSE_MODEL, SPARSE) + 2 * 16 * OF_EXPERT)
    matrices = 1024 * (4 * 1024 + 3 * (256 + 2 * 512) + 8)  # attention's, shared and met experts', the router's
    assert multiplications(row for row in SPARSE_MODEL.layer_rows(SPARSE) if row.kind is Kind.PRODUCT) == matrices
    frozen = 8 * matrices + 1024 * SPARSE_MODEL.vocab_size
    expected = SPARSE_MODEL.model_flops_per_token() - 2 * frozen + 6 * adapters
    assert run_of(SPARSE_MODEL, lora=LORA).model_flops_per_token == expected


def test_routed_tokens_are_kept_only_where_an_adapter_reads_them() -> None:
    with_adapters, without = (kept_of(experts_run(lora), SPARSE) for lora in (Lora(16), Lora(16, (LoraTarget.QKV,))))
    rows, scores = 2 * 4096 * 2, 2 * 4096 * 8 * 4
    assert with_adapters.of(Role.ROUTED) == rows * 1024 * 2 + scores
    assert without.of(Role.ROUTED) == scores
    assert with_adapters.of(Role.ADAPTER) == 2 * 16 * (4 * 2 * 4096 + 2 * rows)


@pytest.mark.parametrize(
    ("targets", "widths"),
    [
        ((LoraTarget.Q, LoraTarget.K, LoraTarget.V), 3 * 1024 + 3 * 1024),  # an adapter each reads the input
        ((LoraTarget.Q, LoraTarget.V), 2 * 1024 + 2 * 1024),
        ((LoraTarget.GATE, LoraTarget.UP), 2 * 1024 + 2 * 2816),
    ],
)
def test_parts_of_a_projection_have_adapters_of_their_own(targets: tuple[LoraTarget, ...], widths: int) -> None:
    assert trained(Lora(16, targets), MODEL) == 16 * widths


def test_mamba_layers_have_adapters_of_both_projections() -> None:
    mamba = Mamba2(num_heads=32, head_dim=64, state_size=128, num_groups=8)
    model = replace(MODEL, mamba2=mamba, layer_types=(Mixer.MAMBA2,), ffn_types=(Ffn.NONE,))
    kind, inner = model.kind(0), 32 * 64
    projected = 2 * inner + 2 * 8 * 128 + 32
    assert trained(LORA, model, kind) == 16 * ((1024 + projected) + (inner + 1024))
    run = run_of(model, lora=Lora(16, (LoraTarget.IN_PROJECTION,)))
    read, whole = kept_of(run, kind), kept_of(replace(run, lora=None), kind)
    assert read.of(Role.NORMED) == 2 * 4096 * 1024 * 2
    # Nothing reads what the output projection multiplies.
    assert whole.of(Role.CORE) - read.of(Role.CORE) == 2 * 4096 * inner * 2


def traffic(lora: Lora, direction: str, sequence_parallel: bool = True) -> dict[str, int]:
    """Return the bytes that tensor-parallel ranks send for adapters, by collective."""
    run = run_of(MODEL, layout=Layout(4, 1, 1, gpus_per_node=8), sequence_parallel=sequence_parallel)
    layer_pass = forward_pass if direction == "forward" else backward_pass
    sizes: Counter[str] = Counter()
    for of, sign in ((lora, 1), (Lora(16, ()), -1)):
        for task in layer_pass(replace(run, lora=of), LayerKind()).calls():
            if task.part is Part.TENSOR_PARALLEL:
                sizes[task.name] += sign * round(task.shape[0] * task.times)
    return {name: size for name, size in sizes.items() if size}


def test_tensor_parallel_ranks_gather_and_sum_what_adapters_make() -> None:
    """Narrow activations, and behind a row-parallel layer the whole output, of which a rank keeps its tokens."""
    tokens, narrow = 2 * 4096, 2 * 4096 * 16 * 2
    share = tokens * 1024 * 2 // 4
    columns, rows = Lora(16, (LoraTarget.QKV,)), Lora(16, (LoraTarget.ATTENTION_OUTPUT,))
    assert traffic(columns, "forward") == {"all_gather": narrow // 4}
    assert traffic(columns, "backward") == {"all_reduce": narrow}
    assert traffic(rows, "forward") == {"all_reduce": narrow, "all_gather": share}
    assert traffic(rows, "backward") == {"all_reduce": narrow, "all_gather": share}
    # Tokens whole on every rank: the gradient of a column-parallel adapter's input is summed, no gradient is gathered.
    assert traffic(columns, "backward", False) == {"all_reduce": narrow + tokens * 1024 * 2}
    assert traffic(rows, "backward", False) == {"all_reduce": narrow}
    exchanged = replace(rows, all_to_all=True)
    assert traffic(exchanged, "forward") == {"all_reduce": narrow, "all_to_all": share}


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"targets": ["in_projection"]}, "has in_projection; no layer of the model has it. Its layers have: qkv, q"),
        ({"targets": ["qkv", "v"]}, "has qkv and v, which is a part of it"),
        ({"targets": []}, r"is \[\]; name one of qkv"),
        ({"normalize_moe_lora": True}, "the model has no experts"),
    ],
)
def test_adapters_of_layers_that_are_not_there_are_refused(lora: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(full_form(training={"lora": {"rank": 8} | lora}), Path())


def test_a_rank_that_tensor_parallel_ranks_cannot_split_is_refused() -> None:
    layout = {"tensor_parallel_size": 4}
    with pytest.raises(ConfigError, match=r"tensor_parallel_size \(mp\) is 4; it must divide rank, 6"):
        prepare(full_form(parallelism=layout, training={"lora": {"rank": 6}}), Path())


def test_a_step_with_adapters_of_experts_is_faster_and_smaller() -> None:
    moe = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 512}
    full, adapted = (predicted(full_form(model={"moe": moe}, training=each)) for each in ({}, {"lora": {"rank": 8}}))
    assert adapted[0] < full[0]
    assert adapted[1] < full[1]
