"""Layers of every kind: which tasks they run, what they keep, and that patterns agree with their shorthands."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from predictor.core.blocks.core import segmented
from predictor.core.blocks.gated_delta import GatedDelta
from predictor.core.blocks.latent_attention import LatentAttention
from predictor.core.blocks.mamba2 import Mamba2
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.rows import Role
from predictor.core.workload.edges import edge_block
from predictor.core.workload.encoder import Encoder
from predictor.core.workload.layout import Layout
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute, RecomputeModule
from predictor.core.workload.switches import Activation, Biases, Ffn, Normalization, Positions
from predictor.core.workload.tasks import Part, Task
from predictor.core.workload.transformer import Transformer
from predictor.core.workload.transformer_step import layer_block, transformer_step
from predictor.core.workload.vision import Vision
from tests.layers import backward_pass, forward_pass, kept_of, parameters_of

MODEL = Transformer(
    num_layers=8,
    hidden_size=1024,
    num_attention_heads=16,
    ffn_hidden_size=2816,
    sequence_length=4096,
    vocab_size=32000,
    activation=Activation.SWIGLU,
    normalization=Normalization.FUSED_RMS_NORM,
)
MLA = LatentAttention(q_lora_rank=384, kv_lora_rank=128, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
LATENT = replace(MODEL, latent_attention=MLA)


def run_of(model: Transformer, tensor_parallel_size: int = 1, **changes: Any) -> TrainingRun:
    run = TrainingRun(
        model=model,
        layout=Layout(tensor_parallel_size, 1, 1, gpus_per_node=8),
        layers_per_stage=(model.num_layers,),
        micro_batch_size=2,
        num_micro_batches=4,
        precision="bf16",
        recompute=Recompute.NONE,
        schedule="1f1b",
        zero_stage=0,
        gradient_bucket_elements=500_000_000,
    )
    return replace(run, **changes)


def by_name(tasks: list[Task]) -> dict[str, Task]:
    return {task.name: task for task in tasks}


def flops(tasks: list[Task]) -> float:
    return sum(task.operator.work(task.shape, task.direction, 1).flops * task.times for task in tasks)


def test_latent_attention_multiplies_by_its_matrices() -> None:
    tasks = by_name(forward_pass(run_of(LATENT, 2), LayerKind()).tasks)
    tokens = 2 * 4096
    assert tasks["q_down_projection"].shape == (tokens, 1024, 384)  # whole on every rank
    assert tasks["q_up_projection"].shape == (tokens, 384, 8 * 192)
    assert tasks["kv_down_projection"].shape == (tokens, 1024, 128 + 64)
    assert tasks["kv_up_projection"].shape == (tokens, 128, 8 * (128 + 128))
    assert tasks["attention_output"].shape == (tokens, 8 * 128, 1024)
    assert tasks["mla_attention"].shape == (2, 4096, 8)
    assert "qkv_projection" not in tasks


def test_a_rank_projects_its_own_tokens_down_and_gathers_latents() -> None:
    """The up-projections read 384 + 128 + 64 of 1024 elements, so that their gather is as much smaller."""
    plain, latent = (
        by_name(forward_pass(run_of(model, 2, sequence_parallel=True), LayerKind(ffn=Ffn.NONE)).tasks)
        for model in (MODEL, LATENT)
    )
    assert latent["q_down_projection"].shape[0] == 4096
    assert latent["all_gather"].shape[0] * 1024 == plain["all_gather"].shape[0] * (384 + 128 + 64)
    assert latent["reduce_scatter"].shape == plain["reduce_scatter"].shape


def test_backward_sums_gradients_of_latents() -> None:
    plain, latent = (
        by_name(backward_pass(run_of(model, 2), LayerKind(ffn=Ffn.NONE)).tasks) for model in (MODEL, LATENT)
    )
    assert latent["all_reduce"].shape[0] * 1024 == plain["all_reduce"].shape[0] * (384 + 128 + 64)


def test_other_widths_run_as_plain_attention_of_the_mean_width() -> None:
    wide = replace(LATENT, latent_attention=replace(MLA, qk_nope_head_dim=192, v_head_dim=256))
    task = by_name(forward_pass(run_of(wide), LayerKind()).tasks)["flash_attention"]
    assert task.shape == (2, 4096, 16, 256, 1)


def test_up_projections_run_again() -> None:
    run = run_of(LATENT, recompute=Recompute.SELECTIVE, recompute_modules=(RecomputeModule.MLA_UP_PROJECTION,))
    again = {task.name for task in layer_block(run, LayerKind()).recompute.tasks}
    assert again == {"q_up_projection", "kv_up_projection", "rope", "head_copies"}


def test_latent_attention_keeps_queries_keys_values_and_latents() -> None:
    kept = kept_of(run_of(LATENT, 2), LayerKind())
    tokens = 2 * 4096 * 2
    assert kept.of(Role.QKV) == tokens * 8 * (192 + 192 + 128)
    assert kept.of(Role.CORE) == tokens * 8 * 128
    assert kept.of(Role.LATENT) == tokens * (2 * (384 + 128) + 64)


@pytest.mark.parametrize(
    ("pattern", "shorthand"),
    [
        ({"layer_types": (Mixer.FULL,)}, {}),
        ({"layer_types": (Mixer.SLIDING,), "sliding_window": 512}, {"sliding_window": 512}),
        ({"ffn_types": (Ffn.DENSE,)}, {}),
        (
            {"layer_types": (Mixer.FULL, Mixer.SLIDING), "sliding_window": 512},
            {"sliding_window": 512, "sliding_window_layers": 4},
        ),
    ],
)
def test_patterns_are_their_shorthands(pattern: dict[str, Any], shorthand: dict[str, Any]) -> None:
    patterned, short = run_of(replace(MODEL, **pattern)), run_of(replace(MODEL, **shorthand))
    assert patterned.stage_kinds(0) == short.stage_kinds(0)
    for own, other in zip(transformer_step(patterned).stages, transformer_step(short).stages, strict=True):
        assert own.states == other.states
        own_calls, other_calls = (
            [(task.name, task.shape, times) for task, times in transformer_step(run).calls(stage)]
            for run, stage in ((patterned, own), (short, other))
        )
        assert own_calls == other_calls


def test_a_pattern_repeats_and_is_cut() -> None:
    model = replace(MODEL, layer_types=(Mixer.SLIDING, Mixer.SLIDING, Mixer.FULL), sliding_window=512)
    assert [model.kind(layer).mixer for layer in (0, 2, 5, 7)] == [
        Mixer.SLIDING,
        Mixer.FULL,
        Mixer.FULL,
        Mixer.SLIDING,
    ]


def test_halves_of_a_layer_are_the_layer() -> None:
    """A layer's token mixer alone and its FFN alone run, keep and own together what the layer does."""
    run = run_of(MODEL, 2)
    whole, mixer, ffn = LayerKind(), LayerKind(ffn=Ffn.NONE), LayerKind(mixer=Mixer.NONE)
    for one_pass in (forward_pass, backward_pass):
        parts = flops(one_pass(run, mixer).tasks) + flops(one_pass(run, ffn).tasks)
        assert flops(one_pass(run, whole).tasks) == pytest.approx(parts)
    totals = [run.layer_parameters(kind).total for kind in (whole, mixer, ffn)]
    assert totals[0] == totals[1] + totals[2]
    kept = [kept_of(run, kind).total for kind in (whole, mixer, ffn)]
    assert kept[0] == kept[1] + kept[2]


@pytest.mark.parametrize("model", [MODEL, LATENT])
def test_one_rank_sends_nothing(model: Transformer) -> None:
    run = run_of(model)
    tasks = forward_pass(run, LayerKind()).tasks + backward_pass(run, LayerKind()).tasks
    assert not [task for task in tasks if task.part is Part.TENSOR_PARALLEL]


def test_chunked_attention_is_attention_over_chunks() -> None:
    model = replace(MODEL, layer_types=(Mixer.CHUNKED,), attention_chunk=1024)
    core = by_name(forward_pass(run_of(model), LayerKind(mixer=Mixer.CHUNKED)).tasks)["flash_attention"]
    assert core.shape[:2] == (8, 1024)


def test_attention_stays_inside_documents() -> None:
    model = replace(MODEL, document_tokens=3000)
    call, times = segmented(run_of(model).layer_call(LayerKind()))
    assert (call.micro_batch_size, call.sequence_length) == (2, 3000)
    assert times * call.micro_batch_size * call.sequence_length == 2 * 4096
    assert model.model_flops_per_token() < MODEL.model_flops_per_token()


def test_a_squared_relu_has_no_gate() -> None:
    model = replace(MODEL, activation=Activation.SQUARED_RELU)
    tasks = by_name(forward_pass(run_of(model), LayerKind()).tasks)
    assert tasks["ffn_up"].shape == (2 * 4096, 1024, 2816)
    assert "square" in tasks
    assert "square" not in by_name(forward_pass(run_of(replace(model, fused_side_kernels=True)), LayerKind()).tasks)


def test_a_gate_widens_the_projection_of_queries() -> None:
    gated = by_name(forward_pass(run_of(replace(MODEL, attention_output_gate=True)), LayerKind()).tasks)
    assert gated["qkv_projection"].shape[2] == 4 * 1024
    assert gated["attention_output_gate"].times > 0


def test_sinks_are_read_backward_only() -> None:
    run = run_of(replace(MODEL, attention_sinks=True))
    assert "attention_sinks" not in by_name(forward_pass(run, LayerKind()).tasks)
    assert "attention_sinks" in by_name(backward_pass(run, LayerKind()).tasks)


def test_alibi_rotates_nothing_and_has_no_table() -> None:
    model = replace(MODEL, positions=Positions.ALIBI, rotary_fraction=0.0)
    assert model.position_parameters() == 0
    assert "rope" not in by_name(forward_pass(run_of(model), LayerKind()).tasks)


def test_biases_of_one_half_are_summed_there() -> None:
    both, attention, ffn = (
        by_name(backward_pass(run_of(replace(MODEL, biases=biases)), LayerKind()).tasks)["bias_gradients"].launches
        for biases in (Biases.ALL, Biases.ATTENTION, Biases.FFN)
    )
    assert both == attention + ffn


def test_a_further_prediction_adds_exactly_its_layer() -> None:
    """Over two stages: a layer, a projection of twice the width, three norms; output projection and loss once more."""
    further = replace(MODEL, num_mtp_layers=1)
    layout = Layout(1, 2, 1, gpus_per_node=8)
    plain, more = (run_of(model, layout=layout, layers_per_stage=(4, 4)) for model in (MODEL, further))
    layer = parameters_of(MODEL).total + 2 * 1024**2 + 3 * 1024
    assert further.num_parameters() - MODEL.num_parameters() == layer
    assert plain.rank_parameters(0) == more.rank_parameters(0)
    assert more.stage_parameters(1) - plain.stage_parameters(1) == layer + MODEL.embedding_parameters()
    counts = []
    for run in (plain, more):
        _, last = transformer_step(run).stages
        calls = Counter[str]()
        for task, times in transformer_step(run).calls(last):
            if task.direction == "forward":
                calls[task.name] += int(times)
        counts.append([calls[name] for name in ("qkv_projection", "lm_head", "mtp_projection")])
    assert counts == [[4 * 4, 4, 0], [5 * 4, 2 * 4, 4]]


def test_parameters_of_ranks_add_up() -> None:
    """Over a pipeline: the whole model, and a copy of the embedding for the further prediction."""
    model = replace(LATENT, num_mtp_layers=1, vocab_size=32000)
    run = run_of(model, layout=Layout(1, 4, 1, gpus_per_node=8), layers_per_stage=(2, 2, 2, 2))
    assert sum(run.stage_parameters(stage) for stage in range(4)) == (
        model.num_parameters() + model.embedding_parameters()
    )


def test_an_encoder_predicts_masked_tokens() -> None:
    encoder = replace(
        MODEL, causal=False, encoder=Encoder(), embedding_norm=True, final_norm=False, tied_embeddings=True
    )
    tasks = by_name(edge_block(run_of(encoder), is_first=True, is_last=True).forward.tasks)
    assert {"embedding_norm", "token_types", "mlm_head", "pooler", "lm_head", "cross_entropy"} <= tasks.keys()
    bare = replace(encoder, encoder=Encoder(mlm_head=False))
    names = by_name(edge_block(run_of(bare), is_first=True, is_last=True).forward.tasks)
    assert "lm_head" not in names
    assert by_name(forward_pass(run_of(encoder), LayerKind()).tasks)["flash_attention"].shape[-1] == 0


VISION = Vision(
    num_layers=4, hidden_size=256, ffn_hidden_size=1024, num_attention_heads=4, patch_size=14, image_size=224,
    tokens_per_image=64, images_per_sample=2,
)  # fmt: skip


def test_a_vision_tower_stands_before_the_first_layer() -> None:
    seeing = replace(MODEL, vision=VISION)
    layout = Layout(2, 2, 1, gpus_per_node=8)
    run, blind = (run_of(model, layout=layout, layers_per_stage=(4, 4)) for model in (seeing, MODEL))
    edge, plain = (edge_block(of, is_first=True, is_last=False) for of in (run, blind))
    tasks = by_name(edge.forward.tasks)
    assert tasks["patch_embedding"].shape == (2 * 2 * 256, 3 * 14 * 14, 256)
    assert tasks["vision_projection"].shape == (2 * 2 * 64, 4 * 256, 1024)
    assert flops(edge.backward.tasks) > flops(plain.backward.tasks)
    assert edge.memory.kept_first > plain.memory.kept_first
    assert run.rank_parameters(0).total - blind.rank_parameters(0).total == VISION.parameters(1024, 2)
    assert run.rank_parameters(1) == blind.rank_parameters(1)
    assert seeing.num_parameters() - MODEL.num_parameters() == VISION.parameters(1024)
    assert seeing.model_flops_per_token() > MODEL.model_flops_per_token()


def test_a_frozen_vision_tower_only_looks_ahead() -> None:
    run = run_of(replace(MODEL, vision=replace(VISION, trained=False)))
    edge, plain = (edge_block(of, is_first=True, is_last=False) for of in (run, run_of(MODEL)))
    assert flops(edge.forward.tasks) > flops(plain.forward.tasks)
    assert flops(edge.backward.tasks) == flops(plain.backward.tasks)
    assert edge.memory == plain.memory
    parameters = run.rank_parameters(0)
    assert parameters.frozen_dense == VISION.parameters(1024)
    assert parameters.total == run_of(MODEL).rank_parameters(0).total


@pytest.mark.parametrize(
    ("layer", "core"),
    [
        (Mixer.MAMBA2, ("ssd_scan", (2, 4096, 16, 64, 128, 1, 256))),
        (Mixer.GATED_DELTA, ("gated_delta_rule", (2, 4096, 16, 64, 64, 64))),
    ],
)
def test_recurrent_layers_project_convolve_and_scan(layer: Mixer, core: tuple[str, tuple[int, ...]]) -> None:
    model = replace(
        MODEL,
        layer_types=(layer, Mixer.FULL),
        mamba2=Mamba2(num_heads=32, head_dim=64, state_size=128, num_groups=2),
        gated_delta=GatedDelta(num_key_heads=16, num_value_heads=32, key_head_dim=64, value_head_dim=64),
    )
    run = run_of(model, 2, sequence_parallel=True)
    tasks = by_name(forward_pass(run, LayerKind(mixer=layer)).tasks)
    assert tasks[core[0]].shape == core[1]
    assert {"in_projection", "out_projection", "convolution", "gated_norm"} <= tasks.keys()
    assert not {"qkv_projection", "flash_attention", "rope"} & tasks.keys()
    ranks = [run_of(model, tp).layer_parameters(LayerKind(mixer=layer, ffn=Ffn.NONE)).total for tp in (1, 2)]
    whole = 1024 + (64 if layer is Mixer.GATED_DELTA else 0)  # norms, which every rank has
    assert ranks[0] - whole == 2 * (ranks[1] - whole)


@pytest.mark.parametrize("fused", [False, True])
def test_layers_without_rotary_positions_run_no_rotation(fused: bool) -> None:
    """Of eight layers every fourth sees no positions; all else in them is equal."""
    model = replace(MODEL, fused_rope=fused, fused_side_kernels=fused, rotary_layers=(True, True, True, False))
    assert [model.kind(layer).rotates for layer in range(8)] == [True, True, True, False] * 2
    assert model.only_kind is None
    for layer_pass in (forward_pass, backward_pass):
        rotated, plain = (
            [task.name for task in layer_pass(run_of(model), LayerKind(rotates=rotates)).tasks]
            for rotates in (True, False)
        )
        assert "rope" in rotated
        assert [name for name in rotated if name != "rope"] == plain


@pytest.mark.parametrize(("groups", "on_rank", "copies"), [(8, 2, 1), (2, 1, 2)])
def test_context_parallel_ranks_exchange_tokens_for_heads(groups: int, on_rank: int, copies: int) -> None:
    """Four ranks of 32 heads: each scans the whole sample of 8 heads, with a copy of B and C for each of its groups."""
    sizes = Mamba2(num_heads=32, head_dim=64, state_size=128, num_groups=groups)
    model, kind = replace(MODEL, layer_types=(Mixer.MAMBA2,), mamba2=sizes), LayerKind(Mixer.MAMBA2)
    layout = replace(run_of(model).layout, context_parallel_size=4, data_parallel_size=2)
    run, tokens = run_of(model, layout=layout), 2 * 4096 // 4
    for one_pass in (forward_pass, backward_pass):
        tasks = one_pass(run, kind).tasks
        named = by_name(tasks)
        assert named["ssd_scan"].shape == (2, 4096, 8, 64, 128, on_rank, 256)
        assert named["in_projection"].shape[0] == tokens
        sent = [(task.shape[0], task.times) for task in tasks if task.part is Part.CONTEXT_PARALLEL]
        widths = [(32 * 64, 3), (groups * copies * 128, 2), (32, 1)]
        assert sent == [(2 * tokens * width, times) for width, times in widths]
        whole = by_name(one_pass(run_of(model), kind).tasks)
        parts = 32 * 64 + 2 * groups * 128, 32 * 64 + 2 * groups * copies * 128
        streamed = [of["convolution"].times * prod(of["convolution"].shape) for of in (named, whole)]
        ratio = streamed[0] / streamed[1]
        assert ratio == pytest.approx(parts[1] / parts[0] / 4, rel=0.01)
    kept, single = (kept_of(of, kind) for of in (run, run_of(model)))
    assert kept.of(Role.QKV) == single.of(Role.QKV) / 4 + 2 * tokens * 2 * groups * (copies - 1) * 128
