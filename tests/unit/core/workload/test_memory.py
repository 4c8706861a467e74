"""Memory against published figures: Korthikanti et al. 2022 for activations, Rajbhandari et al. 2019 for states."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from predictor.core.step.memory import (
    GIB,
    StageMemory,
    activation_bytes,
    end_bytes,
    step_memory,
    together,
    working_bytes,
)
from predictor.core.timeline.in_flight import peak_in_flight
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.encoder import Encoder
from predictor.core.workload.layout import Layout
from predictor.core.workload.parallelism_keys import ZeroStage
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.step_tasks import BlockMemory
from predictor.core.workload.transformer import Attention, Biases, LayerKind, Normalization, Transformer
from predictor.core.workload.transformer_memory import WORKSPACE_BYTES, edge_memory, layer_memory, stage_states
from predictor.core.workload.transformer_step import transformer_step

DENSE = LayerKind()
# Korthikanti et al. 2022, table 3: heads, hidden, layers, tensor-, pipeline-parallel, chunks; s = 2048, v = 51200.
PUBLISHED = {
    "22B": (64, 6144, 48, 8, 1, 1, 4),
    "175B": (96, 12288, 96, 8, 8, 3, 1),
    "530B": (128, 20480, 105, 8, 35, 3, 1),
    "1T": (160, 25600, 128, 8, 64, 1, 1),
}


def published(name: str, recompute: Recompute, sequence_parallel: bool) -> TrainingRun:
    heads, hidden, layers, tp, pp, num_chunks, micro_batch = PUBLISHED[name]
    model = Transformer(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        ffn_hidden_size=4 * hidden,
        sequence_length=2048,
        vocab_size=51200,
        normalization=Normalization.LAYER_NORM,
        attention=Attention.FUSED_SOFTMAX,
        rotary_fraction=0.0,
        biases=Biases.ALL,
        attention_dropout=0.1,
        hidden_dropout=0.1,
        fused_side_kernels=True,
        tied_embeddings=True,
    )
    return TrainingRun(
        model=model,
        layout=Layout(tp, pp, 1, gpus_per_node=8),
        layers_per_stage=(layers // pp,) * pp,
        micro_batch_size=micro_batch,
        num_micro_batches=2 * pp,
        precision="fp16",
        recompute=recompute,
        schedule="interleaved_1f1b" if num_chunks > 1 else "1f1b",
        zero_stage=0,
        gradient_bucket_elements=500_000_000,
        blocking_transfers=False,
        virtual_pipeline_parallel_size=num_chunks,
        sequence_parallel=sequence_parallel,
        fp32_gradients=True,
    )


def run_memory(run: TrainingRun) -> list[StageMemory]:
    return step_memory(transformer_step(run))


def kept_bytes(run: TrainingRun) -> float:
    return layer_memory(run, DENSE).kept


def sbh(run: TrainingRun) -> float:
    return float(run.model.sequence_length * run.micro_batch_size * run.model.hidden_size)


@pytest.mark.parametrize("name", PUBLISHED)
def test_activations_of_a_layer_equal_the_published_formulas(name: str) -> None:
    # Korthikanti et al. 2022, table 2.
    heads, hidden, _, t, *_ = PUBLISHED[name]
    scores = 5 * heads * 2048 / hidden
    for recompute, parallel, expected in (
        (Recompute.NONE, False, 10 + 24 / t + scores / t),
        (Recompute.NONE, True, (34 + scores) / t),
        (Recompute.SELECTIVE, False, 10 + 24 / t),
        (Recompute.SELECTIVE, True, 34 / t),
        (Recompute.FULL, False, 2),
    ):
        run = published(name, recompute, parallel)
        assert kept_bytes(run) == pytest.approx(expected * sbh(run), rel=1e-9)


@pytest.mark.parametrize(("name", "saved"), [("175B", 0.70), ("530B", 0.65)])
def test_selective_recomputation_saves_the_published_share(name: str, saved: float) -> None:
    # Korthikanti et al. 2022, section 5: 70 % and 65 % of the activations of GPT-3 and MT-NLG.
    run, selective = (published(name, mode, True) for mode in (Recompute.NONE, Recompute.SELECTIVE))
    assert 1 - kept_bytes(selective) / kept_bytes(run) == pytest.approx(saved, abs=0.01)


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("22B", (0.6684, 0.4942, 0.1618, 0.0764)),
        ("175B", (0.6204, 0.5653, 0.1849, 0.0871)),
        ("530B", (0.5831, 0.6204, 0.2027, 0.0942)),
        ("1T", (0.5831, 0.6204, 0.2027, 0.0942)),
    ],
)
def test_activations_shrink_as_published(name: str, shares: tuple[float, ...]) -> None:
    # Korthikanti et al. 2022, figure 7, read off the plot by Isaev et al. 2023 (calculon, doi:10.1145/3581784.3607102):
    # sequence parallelism, selective recomputation, both, full recomputation, each over none of them.
    whole = kept_bytes(published(name, Recompute.NONE, False))
    modes = ((Recompute.NONE, True), (Recompute.SELECTIVE, False), (Recompute.SELECTIVE, True), (Recompute.FULL, False))
    for (recompute, parallel), expected in zip(modes, shares, strict=True):
        assert kept_bytes(published(name, recompute, parallel)) / whole == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("name", "states", "activations"),
    [
        ("22B", 45.56, (59.25, 9.56)),
        ("175B", 45.56, (66.84, 12.35)),
        ("530B", 31.64, (114.02, 23.08)),
        ("1T", 32.96, (131.25, 26.56)),
    ],
)
def test_gibibytes_equal_the_published_figure(name: str, states: float, activations: tuple[float, float]) -> None:
    # Korthikanti et al. 2022, figure 1, read off the plot as above: the states of all parameters over all GPUs, and the
    # first stage's activations without either technique and with both.
    for recompute, parallel, expected in zip(
        (Recompute.NONE, Recompute.SELECTIVE), (False, True), activations, strict=True
    ):
        stages = run_memory(published(name, recompute, parallel))
        assert stages[0].activations / GIB == pytest.approx(expected, rel=0.05)
        assert sum(stage.states for stage in stages) / len(stages) / GIB == pytest.approx(states, rel=0.05)


@pytest.mark.parametrize(("name", "expected"), [("175B", 1 + 7 / 24), ("530B", 1 + 34 / 105)])
def test_interleaving_keeps_the_published_share_more(name: str, expected: float) -> None:
    # Korthikanti et al. 2022, section 4.2.3: the first stage keeps L (1 + (p - 1) / (p m)) layers' activations.
    run = published(name, Recompute.NONE, True)
    stages, num_chunks = run.layout.pipeline_parallel_size, run.virtual_pipeline_parallel_size
    in_flight = peak_in_flight(SCHEDULES[run.schedule], 0, stages, run.num_micro_batches, num_chunks)
    kept = kept_bytes(run)
    held = activation_bytes(BlockMemory(kept * run.layers_per_stage[0]), in_flight, num_chunks)
    assert held == pytest.approx(run.model.num_layers * expected * kept, rel=0.05)


def test_the_end_of_the_model_keeps_its_inputs_and_the_logits() -> None:
    # Korthikanti et al. 2022, section 4.3: 4 s b h / t · (1 + v / h) for norm, projection and fp32 logits; the 16-bit
    # logits that ours keeps as well are Megatron-LM's before it fused the cross entropy.
    run = published("22B", Recompute.NONE, True)
    per_rank = 4 * sbh(run) / 8 * (1 + 51200 / 6144)
    logits = sbh(run) / 6144 * 51200 / 8
    assert edge_memory(run, is_first=False, is_last=True).kept_last == pytest.approx(per_rank + 2 * logits, rel=1e-9)


def test_a_model_without_an_output_projection_keeps_no_logits() -> None:
    run = published("22B", Recompute.NONE, True)
    headless = replace(run, model=replace(run.model, encoder=Encoder(mlm_head=False)))
    inputs = 2 * sbh(run) / 8
    end = edge_memory(headless, is_first=False, is_last=True)
    assert (end.kept_last, end.deferred) == (2 * inputs, inputs)


def test_a_stage_without_layers_holds_no_gradient_beside_its_buffer() -> None:
    run = published("22B", Recompute.NONE, True)
    of_ends = RankParameters(run.model.embedding_parameters(8), 0)
    assert stage_states(run, [], of_ends).buffers == 2 * WORKSPACE_BYTES


@pytest.mark.parametrize(
    ("ranks", "gigabytes"),
    [
        (1, (120, 120, 120, 120)),
        (4, (120, 52.5, 41.3, 30)),
        (16, (120, 35.6, 21.6, 7.5)),
        (64, (120, 31.4, 16.6, 1.88)),
        (256, (120, 30.4, 15.4, 0.47)),
        (1024, (120, 30.1, 15.1, 0.12)),
    ],
)
def test_states_of_a_7_5b_model_equal_the_published_table(ranks: int, gigabytes: tuple[float, ...]) -> None:
    # Rajbhandari et al. 2019, arXiv:1910.02054, table 1: 7.5 billion parameters, stages 0 to 3.
    model = Transformer(
        num_layers=1, hidden_size=128, num_attention_heads=1, ffn_hidden_size=7_500_000_000 // 256,
        sequence_length=128, vocab_size=128, rotary_fraction=1.0, tied_embeddings=True,
    )  # fmt: skip
    for stage, expected in zip(get_args(ZeroStage), gigabytes, strict=True):
        run = replace(
            published("22B", Recompute.NONE, False),
            model=model,
            layout=Layout(1, 1, ranks, gpus_per_node=8),
            layers_per_stage=(1,),
            zero_stage=stage,
            fp32_gradients=False,
            micro_batch_size=1,
            num_micro_batches=1,
        )
        assert run_memory(run)[0].states / 1e9 == pytest.approx(expected, rel=0.05)


def test_megatron_states_are_18_bytes_a_parameter() -> None:
    # Narayanan et al. 2021 and Megatron-LM without its distributed optimizer: 2 + 4 + 12.
    run = published("175B", Recompute.NONE, True)
    assert run_memory(run)[3].states == 18 * run.stage_parameters(3)


def test_the_first_stage_is_the_fullest_and_recomputation_empties_it() -> None:
    none, full = (run_memory(published("175B", mode, True)) for mode in (Recompute.NONE, Recompute.FULL))
    assert none[0].activations == max(stage.activations for stage in none)
    assert full[0].total < none[0].total
    assert full[0].working > none[0].working > 0  # the layer that is recomputed exists in full for a while


def test_published_runs_fit_the_gpu_they_ran_on() -> None:
    # Korthikanti et al. 2022, section 6: all four ran on A100s of 80 GB with selective recomputation.
    for name in PUBLISHED:
        assert max(stage.total for stage in run_memory(published(name, Recompute.SELECTIVE, True))) < 80 * GIB


def test_parts_add_up() -> None:
    memory = run_memory(published("22B", Recompute.FULL, False))[0]
    parts = memory.states + memory.activations + memory.working + memory.buffers + memory.allowance
    assert memory.total == pytest.approx(parts)
    assert memory.states == pytest.approx(memory.weights + memory.gradients + memory.optimizer)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("1f1b", 10), ("interleaved_1f1b", 10), ("all_forward_all_backward", 8 * 10), ("zero_bubble_h1", 10 + 3 * 4)],
)
def test_the_schedule_decides_how_many_logits_the_last_stage_holds(schedule: str, expected: float) -> None:
    # 8 micro-batches on 4 stages. 1F1B goes back at once, AFAB holds all, ZB-H1 holds what weight gradients need of 3.
    held = BlockMemory(kept_last=10.0, deferred=4.0)
    assert end_bytes(SCHEDULES[schedule], held, num_stages=4, num_micro_batches=8) == expected


def test_the_first_chunk_holds_the_embedding_for_most_micro_batches() -> None:
    # 7 chunks' micro-batches in flight on 2 chunks: 3.5 on average, 4 in the first.
    held = together([(BlockMemory(kept=2.0, working=5.0), 6), (BlockMemory(kept_first=1.0, gathered=3.0), 1)])
    assert activation_bytes(held, in_flight=7, num_chunks=2) == 3.5 * 6 * 2 + 4
    assert (held.working, held.gathered) == (5, 3)
    assert working_bytes(held, end=4.0) == 5 + 3
    assert working_bytes(held, end=6.0) == 6 + 3
