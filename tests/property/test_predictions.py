"""Whole steps on a published system, for many configurations: what must hold whatever was measured."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.published import PublishedSystem, open_system
from predictor.core.plan.short_config import expand
from predictor.core.plan.to_run import to_run
from predictor.core.schema.sections import validate
from predictor.core.step.breakdown import stage_parts
from predictor.core.step.prediction import Prediction, predict
from predictor.core.workload.run import TrainingRun
from tests.unit.examples import full_form, short_form

# Regressors carry noise of some per cent, and tiles and waves make a kernel of a larger shape a little faster at times.
NOISE = 0.03
POWERS = st.sampled_from([1, 2, 4, 8])


@cache
def system() -> PublishedSystem:
    return open_system(REGRESSORS_FOLDER / "Perlmutter", "fp16")


def predicted(run: TrainingRun) -> Prediction:
    return predict(run, system())


def to_full_run(content: dict[str, Any]) -> TrainingRun:
    return to_run(validate(content), system().hardware.gpus_per_node)


@st.composite
def full_forms(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a full form inside the usual range."""
    heads, width = draw(st.sampled_from([(16, 2048), (32, 4096), (40, 5120)]))
    layers = draw(st.sampled_from([8, 12, 24]))
    return full_form(
        model={
            "num_layers": layers,
            "hidden_size": width,
            "num_attention_heads": heads,
            "sequence_length": draw(st.sampled_from([1024, 2048, 4096])),
            "attention": draw(st.sampled_from(["flash", "unfused", "fused_softmax"])),
            "normalization": draw(st.sampled_from(["rms_norm", "layer_norm"])),
            "biases": draw(st.booleans()),
            "parallel_residual": draw(st.booleans()),
            "tied_embeddings": draw(st.booleans()),
        },
        parallelism={
            "tensor_parallel_size": draw(POWERS),
            "pipeline_parallel_size": draw(POWERS),
            "data_parallel_size": draw(POWERS),
            "schedule": draw(st.sampled_from(["1f1b", "all_forward_all_backward"])),
            "blocking_transfers": draw(st.booleans()),
            "zero_stage": draw(st.sampled_from([0, 1])),
            "overlap_gradient_reduction": draw(st.booleans()),
        },
        training={
            "micro_batch_size": draw(st.sampled_from([1, 2, 4])),
            "num_micro_batches": draw(st.sampled_from([1, 4, 8])),
            "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        },
    )


OF_SHORT_FORM = {"framework": "pytorch", "conditions": "model"}  # which says all, and to which nothing is added


@given(full_forms())
@settings(max_examples=60)
def test_interval_contains_the_point_and_parts_add_up(content: dict[str, Any]) -> None:
    prediction = predicted(to_full_run(content))
    step = prediction.step
    assert 0 < step.low_us <= step.us <= step.high_us
    for parts in stage_parts(prediction):
        assert abs(parts.step_us - step.us) <= 1e-9 * step.us
        assert all(getattr(parts, name) >= -1e-6 * step.us for name in parts.__slots__)


@given(full_forms())
@settings(max_examples=60)
def test_one_rank_sends_nothing(content: dict[str, Any]) -> None:
    layout = content["parallelism"]
    parts = stage_parts(predicted(to_full_run(content)))
    for stage in parts:
        assert (stage.tensor_parallel_us > 0) == (layout["tensor_parallel_size"] > 1)
        data = stage.data_parallel_us
        tied = content["model"]["tied_embeddings"] and layout["pipeline_parallel_size"] > 1
        assert (data > 0) == (layout["data_parallel_size"] > 1) or tied
        if layout["pipeline_parallel_size"] == 1:
            assert (stage.pipeline_us, stage.bubble_us) == (0.0, 0.0)


@given(full_forms(), st.sampled_from(["num_micro_batches", "micro_batch_size", "sequence_length", "num_layers"]))
@settings(max_examples=100)
def test_twice_the_work_is_never_faster(content: dict[str, Any], size: str) -> None:
    section = "model" if size in content["model"] else "training"
    more = {**content, section: {**content[section], size: 2 * content[section][size]}}
    before, after = predicted(to_full_run(content)), predicted(to_full_run(more))
    assert after.step.us >= before.step.us * (1 - NOISE)


@given(full_forms())
@settings(max_examples=40)
def test_recomputing_more_is_never_faster(content: dict[str, Any]) -> None:
    run = to_full_run(content)
    times = [
        predicted(to_full_run({**content, "training": {**content["training"], "recompute": recompute}})).step.us
        for recompute in ("none", "selective", "full")
    ]
    assert times == sorted(times), run


@given(POWERS, POWERS, POWERS, st.sampled_from([1, 2, 4]), st.sampled_from([8, 32, 40]), st.sampled_from([1, 4, 8]))
@settings(max_examples=60)
def test_short_form_and_full_form_predict_the_same(pp: int, mp: int, dp: int, b: int, encoders: int, m: int) -> None:
    decided = {"recompute": "full", "partition_activations": True, "synchronize_each_layer": True}
    short = short_form(pp=pp, mp=mp, dp=dp, b=b, encoders=encoders, steps_per_update=m, **decided)
    expanded = expand(short)
    full = full_form(
        model={
            "num_layers": encoders,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "sequence_length": 4096,
            "layer_operators": expanded["model"]["layer_operators"],
            "forward_all_reduces": 2,
            "backward_all_reduces": 2,
        },
        parallelism={
            "pipeline_parallel_size": pp,
            "tensor_parallel_size": mp,
            "data_parallel_size": dp,
            "gpus_per_node": 4,
            "layers_per_stage": "gpt_neox",
            "gradient_bucket_elements": 1_260_000_000,
        },
        training={"micro_batch_size": b, "num_micro_batches": m, "precision": "fp16", **OF_SHORT_FORM, **decided},
    )
    short_run = to_run(validate(expanded, is_short=True), 4)
    full_run = to_full_run(full)
    assert predicted(short_run).step == predicted(full_run).step
    assert replace(short_run, model=full_run.model) == full_run


@given(full_forms())
@settings(max_examples=30)
def test_memory_changes_no_answer(content: dict[str, Any]) -> None:
    assume(content["parallelism"]["pipeline_parallel_size"] <= 4)
    run = to_full_run(content)
    remembered = predicted(run).step
    system().forget()
    assert predicted(run).step == remembered
