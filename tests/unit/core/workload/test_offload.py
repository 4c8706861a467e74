"""States and activations in host memory: what leaves the GPU, what travels, and what computing hides of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.core.base.errors import ConfigError
from predictor.core.costs.cost import ZERO
from predictor.core.costs.host_adam import DEEPSPEED_ADAM, GRADIENT_SCALING, SCALAR_ADAM, TORCH_ADAM, HostAdamRegressor
from predictor.core.costs.host_copy import PAGEABLE_COPY, PINNED_COPY, HostCopyRegressor
from predictor.core.costs.operator import Direction
from predictor.core.plan.loading import prepare
from predictor.core.step.breakdown import stage_parts
from predictor.core.step.memory import StageMemory, step_memory
from predictor.core.step.prediction import Prediction, predict
from predictor.core.step.spans import step_graph, step_trace
from predictor.core.timeline.graph import replay_graph
from predictor.core.timeline.pipeline import Stream
from predictor.core.workload.offload import inputs_of_modules
from predictor.core.workload.tasks import Part

RUN = {"system": "H100", "model": "llama3-8b", "training": {"micro_batch_size": 1, "num_micro_batches": 1}}
H100 = prepare(RUN, Path.cwd()).system.hardware


def predicted(
    parallelism: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **training: Any
) -> Prediction:
    """Return a prediction of a small GPT on one node of H100s."""
    content: dict[str, Any] = {
        "system": "H100",
        "model": {
            "num_layers": 16,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "sequence_length": 4096,
            "vocab_size": 512,
        },
        "parallelism": {"data_parallel_size": 4, **(parallelism or {})},
        "training": {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16", **training},
        "cluster": cluster or {},
    }
    loaded = prepare(content, Path.cwd())
    return predict(loaded.run, loaded.system)


def predict_of(content: dict[str, Any], **training: Any) -> Prediction:
    """Return a prediction of a configuration with further keys of ``training``."""
    loaded = prepare({**content, "training": {**content["training"], **training}}, Path.cwd())
    return predict(loaded.run, loaded.system)


def memory(prediction: Prediction) -> StageMemory:
    """Return the memory of the first stage."""
    return step_memory(prediction.tasks)[0]


def test_deepspeeds_adam_takes_what_its_paper_measured() -> None:
    # Ren et al. 2021, arXiv:2101.06840, table 4, on a DGX-2 (255.9 GB/s): parameters, CPU-Adam and PyTorch's, seconds.
    host = HostAdamRegressor(255.9)
    for parameters, own, torch in ((1e9, 0.22, 1.39), (2e9, 0.51, 2.75), (4e9, 1.03, 5.71), (8e9, 2.41, 11.93)):
        for operator, seconds in ((DEEPSPEED_ADAM, own), (TORCH_ADAM, torch)):
            cost = host.answer(operator, Direction.FORWARD, (int(parameters), 0, 1))
            assert cost.us == pytest.approx(seconds * 1e6, rel=0.25)
            assert cost.low_us < seconds * 1e6 < cost.high_us


def copied(found: Prediction, name: str) -> dict[str, float]:
    """Return the bytes of so-named copies of each pass of one micro-batch, over all layers and both ends."""
    moved: dict[str, float] = {}
    for block, count in found.tasks.stages[0].chunks[0].blocks:
        for key in ("forward", "recompute", "backward"):
            tasks = [task for task in getattr(block, key).calls() if task.name == name]
            moved[key] = moved.get(key, 0.0) + count * sum(task.shape[0] * task.times for task in tasks)
    return moved


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_offloaded_states_leave_the_gpu(share: float) -> None:
    none, some = memory(predicted()), memory(predicted(offload_optimizer=share))
    assert some.optimizer == pytest.approx((1.0 - share) * none.optimizer)
    assert some.weights == none.weights
    assert some.gradients == none.gradients


def test_deepspeeds_gradients_leave_the_gpu_too() -> None:
    # Ren et al. 2021, section 4.1: of 16 bytes a parameter only the two of its 16-bit weight stay.
    sharded = {"zero_stage": 2}
    none, some = (memory(predicted(sharded, framework="deepspeed", offload_optimizer=share)) for share in (0.0, 1.0))
    assert none.gradients > 0.0
    assert some.gradients == some.optimizer == 0.0
    assert some.weights == none.weights


def test_an_update_on_the_host_is_copies_and_adam_in_turn() -> None:
    found = predicted(offload_optimizer=1.0)
    states = found.run.stage_parameters(0) // 4
    down = HostCopyRegressor(63.0).answer(PINNED_COPY, Direction.FORWARD, (4 * states,)).us
    up = HostCopyRegressor(63.0).answer(PINNED_COPY, Direction.FORWARD, (2 * states,)).us
    update = HostAdamRegressor(614.4).answer(TORCH_ADAM, Direction.FORWARD, (states, 0, 4)).us
    assert found.stages[0].optimizer.us == pytest.approx(down + update + up, rel=1e-5)
    beside = predicted(offload_optimizer=1.0, overlap_optimizer_offload=True)
    assert beside.stages[0].optimizer.us == pytest.approx(max(down, update, up), rel=1e-5)
    ours = predicted(framework="deepspeed", offload_optimizer=1.0, host_threads=None)
    assert ours.stages[0].optimizer.us < found.stages[0].optimizer.us


def test_one_thread_streams_less_than_a_ranks_share_of_the_memory() -> None:
    host, parameters = HostAdamRegressor(409.6), 842_000_000
    whole, thread, two, scalar = (
        host.answer(operator, Direction.FORWARD, (parameters, threads, 8)).us / 1e6
        for operator, threads in ((DEEPSPEED_ADAM, 0), (DEEPSPEED_ADAM, 1), (DEEPSPEED_ADAM, 2), (SCALAR_ADAM, 1))
    )
    assert thread == pytest.approx(842e6 * 30 / 12e9)
    assert whole == two < thread < scalar == pytest.approx(4.4 * thread)


@pytest.mark.parametrize(("billions", "seconds"), [(72.7 / 32, 10.0), (6.74 / 4, 6.5)])
def test_one_thread_and_pageable_copies_take_what_users_report(billions: float, seconds: float) -> None:
    # 72B on 32 A100s, "~0.2s vs ~10s" (deepspeedai/DeepSpeed, issue 6834); Llama 2 7B on 4 A100s, "from 0.5s to over
    # 7s" (PyTorch's blog on ZenFlow).
    host, link, parameters = HostAdamRegressor(409.6), HostCopyRegressor(31.5), int(billions * 1e9)
    update = sum(
        host.answer(operator, Direction.FORWARD, (parameters, 1, 8)).us
        for operator in (DEEPSPEED_ADAM, GRADIENT_SCALING)
    )
    copies = 2 * link.answer(PAGEABLE_COPY, Direction.FORWARD, (4 * parameters,)).us
    assert (update + copies) / 1e6 == pytest.approx(seconds, rel=0.2)


def test_deepspeeds_states_on_the_host_take_what_its_users_report() -> None:
    # LLaMA-7B on 8 A800, sequences of 4,096, DeepSpeed 0.14.2, whose Adam is scalar: 35.4 s with the optimizer in host
    # memory and 8 micro-batches, 15.3 s without. Source: gist.github.com/chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a.
    content: dict[str, Any] = {
        "system": "A100_SXM",
        "model": {"preset": "llama-7b", "sequence_length": 4096},
        "parallelism": {"data_parallel_size": 8, "zero_stage": 2},
        "training": {"micro_batch_size": 1, "num_micro_batches": 8, "recompute": "full", "framework": "deepspeed"},
    }
    none, offloaded, simd = (
        predict_of(content, **extra).step.us / 1e6
        for extra in ({}, {"offload_optimizer": 1.0, "host_simd": False}, {"offload_optimizer": 1.0})
    )
    assert offloaded - none == pytest.approx(35.4 - 15.3, rel=0.3)
    assert none < simd < offloaded


def test_gradients_that_the_host_sums_travel_with_every_micro_batch() -> None:
    sharded = {"zero_stage": 2}

    def link_us(micro_batches: int, **keys: Any) -> float:
        found = predicted(sharded, offload_optimizer=1.0, num_micro_batches=micro_batches, **keys)
        whole = found.stages[0].whole.backward
        return (whole.traffic | whole.hidden).get(Part.HOST_LINK, ZERO).us

    assert link_us(1, framework="deepspeed") == 0.0
    two, four = (link_us(count, framework="deepspeed") * count for count in (2, 4))
    assert four == pytest.approx(3 * two)  # all but the first read the sum, all but the last write it
    exposed, hidden = (
        predicted(sharded, offload_optimizer=1.0, framework="deepspeed", pinned_offload=pinned).step.us
        for pinned in (False, True)
    )
    assert hidden < exposed


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_more_states_on_the_host_need_less_memory(one: float, other: float) -> None:
    less, more = sorted((one, other))
    few, many = (memory(predicted(offload_optimizer=share)) for share in (less, more))
    assert many.total <= few.total * (1 + 1e-12)


def test_gpu_and_host_update_their_shares_beside_each_other() -> None:
    whole, tenth = predicted(), predicted(offload_optimizer=1e-4, cluster={"host_memory_gb_per_s": 1e5})
    assert tenth.stages[0].optimizer.us <= whole.stages[0].optimizer.us
    assert not tenth.stages[0].update_parts


def test_a_faster_host_updates_faster() -> None:
    slow, fast = (
        predicted(offload_optimizer=1.0, cluster={"host_memory_gb_per_s": rate}).step.us for rate in (100.0, 400.0)
    )
    assert fast < slow
    link_slow, link_fast = (
        predicted(offload_optimizer=1.0, cluster={"host_gb_per_s": rate}).step.us for rate in (10.0, 100.0)
    )
    assert link_fast < link_slow


def test_offloaded_layers_keep_two_layers_activations() -> None:
    none, all_, half = (memory(predicted(offload_activation_layers=layers)) for layers in (0, 16, 8))
    layer = none.activations / 16
    assert all_.activations == pytest.approx(0.0, abs=1.0)
    assert half.activations == pytest.approx(none.activations / 2)
    working = [
        predicted(offload_activation_layers=n).tasks.stages[0].chunks[0].blocks[1][0].memory.working for n in (0, 16)
    ]
    assert working[1] - working[0] == pytest.approx(2 * layer, rel=1e-6)
    assert all_.total < half.total < none.total


def test_copies_of_activations_hide_until_they_are_longer_than_computing() -> None:
    none = predicted()
    hidden = predicted(offload_activation_layers=1)
    assert hidden.modelled_us == pytest.approx(none.modelled_us)
    assert hidden.stages[0].whole.forward.hidden[Part.HOST_LINK].us > 0.0
    exposed = predicted(offload_activation_layers=16, cluster={"host_gb_per_s": 5.0})
    (parts,) = stage_parts(exposed)
    assert parts.host_link_us > 0.0
    working_us, longer_us = (each.modelled_us - each.host.us for each in (none, exposed))
    assert longer_us == pytest.approx(working_us + parts.host_link_us)
    assert parts.step_us == pytest.approx(exposed.step.us)
    layer = memory(none).activations / 16
    copies = 2 * 4 * 16 * HostCopyRegressor(5.0).answer(PINNED_COPY, Direction.FORWARD, (int(layer),)).us
    computing = (
        none.timeline.busy[0] - none.host.us
    )  # of the layers, and of the model's ends, beside which no layer travels
    assert parts.host_link_us == pytest.approx(copies - computing, rel=1e-2)


def test_checkpoints_on_the_host_travel_beside_both_passes() -> None:
    none, some = (predicted(recompute="full", offload_activations=on) for on in (False, True))
    checkpoint = 4096 * 2048 * 2
    assert memory(none).activations == 16 * checkpoint
    assert memory(some).activations == 0.0
    assert copied(some, "activations_to_host")["forward"] == 16 * checkpoint
    back = copied(some, "activations_from_host")
    assert back["recompute"] + back["backward"] == pytest.approx(16 * checkpoint)
    assert back["recompute"] == pytest.approx(16 * checkpoint / 3, rel=0.05)  # a forward pass of about three
    assert some.modelled_us == pytest.approx(none.modelled_us)  # all of it is hidden
    slow = predicted(recompute="full", offload_activations=True, cluster={"host_gb_per_s": 2.0})
    assert slow.modelled_us > none.modelled_us


def test_checkpoints_in_the_stream_of_computing_are_exposed() -> None:
    none = predicted(recompute="full")
    turn = predicted(recompute="full", offload_activations=True, overlap_activation_offload=False)
    copy = HostCopyRegressor(63.0).answer(PINNED_COPY, Direction.FORWARD, (4096 * 2048 * 2,)).us
    busy, longer = (
        each.stages[0].whole.forward.cost.us - each.stages[0].whole.forward.host.us for each in (none, turn)
    )
    assert longer - busy == pytest.approx(16 * copy)
    assert stage_parts(turn)[0].host_link_us == pytest.approx(2 * 4 * 16 * copy)
    assert memory(turn).activations == 0.0


def test_activations_of_all_layers_are_those_of_as_many_layers() -> None:
    counted, every = predicted(offload_activation_layers=16), predicted(offload_activations=True)
    assert every.modelled_us == counted.modelled_us
    assert memory(every) == memory(counted)


def test_offloading_is_spans_of_the_step() -> None:
    found = predicted(offload_activation_layers=16, offload_optimizer=1.0, cluster={"host_gb_per_s": 20.0})
    graph = replay_graph(step_graph(found))
    assert graph.makespan_us == pytest.approx(found.modelled_us)
    assert {span.name for span in graph.spans if span.stream == Stream.OPTIMIZER} == {
        "gradients to host",
        "update on the host",
        "weights from host",
    }
    assert any(span.name == "host-link traffic" for span in step_trace(found).spans)


def test_inputs_of_modules_leave_the_gpu() -> None:
    none = memory(predicted())
    some = memory(predicted(offload_modules=["core_attn", "attn_proj"]))
    # Queries, keys and values, and what attention makes of them: four activations of 16 bits in each of 16 layers.
    moved = 4 * 4096 * 2048 * 2 * 16
    assert none.activations - some.activations == pytest.approx(moved, rel=1e-9)
    norms = memory(predicted(offload_modules=["attn_norm", "mlp_norm"]))
    assert none.activations - norms.activations == pytest.approx(2 * 4096 * 2048 * 2 * 16, rel=1e-9)
    slow = predicted(offload_modules=["core_attn", "attn_proj"], cluster={"host_gb_per_s": 0.5})
    assert stage_parts(slow)[0].host_link_us > 0.0


MOE = {"num_experts": 16, "experts_per_token": 2, "expert_ffn_hidden_size": 1024}
STREAM, ROWS = 4096 * 2048, 2 * 4096


def moved(modules: list[str], model: dict[str, Any] | None = None, **training: Any) -> list[float]:
    """Return the bytes that each kind of layer of a run moves to the host, with no others kept there."""
    content: dict[str, Any] = {
        "system": "B200",
        "model": {
            "num_layers": 4,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "sequence_length": 4096,
            "activation": "swiglu",
            "fused_side_kernels": True,
            **(model or {}),
        },
        "training": {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16", **training},
    }
    run = prepare(content | {"training": content["training"] | {"offload_modules": modules}}, Path.cwd()).run
    kinds = dict.fromkeys(run.kind(layer) for layer in range(4))
    return [inputs_of_modules(run, kind) for kind in kinds]


def test_only_attention_has_attention_s_modules() -> None:
    mamba = {"num_heads": 64, "head_dim": 64, "state_size": 128, "num_groups": 8}
    model = {"layer_types": ["mamba2", "full_attention"], "mamba2": mamba}
    assert moved(["qkv_linear", "core_attn"], model) == [0.0, (1 + 3) * STREAM * 2]


def test_inputs_travel_as_their_products_cast_them() -> None:
    mxfp8: dict[str, Any] = {"gemm_recipe": "mxfp8"}
    per_input = 1 + 1 / 32
    assert moved(["qkv_linear"], **mxfp8) == [STREAM * per_input]
    assert moved(["core_attn", "attn_proj"], **mxfp8) == [STREAM * (3 * 2 + per_input)]
    assert moved(["core_attn"], **mxfp8, fp8_attention=True) == [3 * STREAM * 2 * per_input]  # both layouts
    assert moved(["attn_norm", "mlp_norm"], **mxfp8) == [2 * STREAM * 2]


def test_experts_move_their_rows_and_what_their_first_product_makes() -> None:
    assert moved(["expert_fc1"], {"moe": MOE}) == [ROWS * 2048 * 2]  # no scores of the router
    assert moved(["moe_act"], {"moe": MOE}) == [ROWS * 2 * 1024 * 2]
    fused = {"gemm_recipe": "mxfp8", "fused_experts": True}
    cast = 1 + 1 / 32
    expected = ROWS * (2048 * cast + 2 * 1024 * 2 + 1024 * cast)
    assert moved(["fused_group_mlp"], {"moe": MOE}, **fused) == [expected]
    with pytest.raises(ConfigError, match="name it without expert_fc1 and moe_act"):
        moved(["fused_group_mlp", "moe_act"], {"moe": MOE}, **fused)


def test_what_runs_again_does_not_travel() -> None:
    latent = {
        "kv_lora_rank": 256,
        "q_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    selective = {"recompute": "selective", "recompute_modules": ["mla_up_proj"]}
    assert moved(["core_attn"], {"latent_attention": latent}, **selective) == [0.0]
    latents = 4096 * (2 * (256 + 512) + 64) * 2
    assert moved(["qkv_linear"], {"latent_attention": latent}) == [STREAM * 2 + latents]


def test_chunks_offload_as_many_layers_each() -> None:
    pipe = {"pipeline_parallel_size": 2, "data_parallel_size": 2, "virtual_pipeline_parallel_size": 2}
    none, some = (step_memory(predicted(pipe, offload_activation_layers=layers).tasks) for layers in (0, 2))
    for before, after in zip(none, some, strict=True):
        assert after.activations == pytest.approx(before.activations / 2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"offload_optimizer": 1.5}, "less than or equal to 1"),
        ({"offload_activation_layers": 17}, "no model chunk has more than 16 layers"),
        ({"offload_activation_layers": 2, "recompute": "full"}, "keeps no activations but its inputs"),
        ({"offload_activations": True, "offload_modules": ["core_attn"]}, "leave one out"),
        ({"offload_activation_layers": 2, "offload_modules": ["core_attn"]}, "leave one out"),
        ({"offload_modules": ["core_attn"], "recompute": "full"}, "offload_modules is given with recompute: full"),
        ({"offload_modules": ["moe_act"]}, "the model has no experts"),
        ({"offload_modules": ["attn_proj"]}, "attn_proj without core_attn"),
        ({"offload_optimizer": 0.5, "parallelism": {"fp32_parameters": True, "zero_stage": 3}}, "FSDP offloads both"),
        ({"offload_parameters": True}, "zero_stage is 1: set it to 3"),
        (
            {"offload_parameters": True, "parallelism": {"zero_stage": 3, "reshard_after_forward": False}},
            "reshard_after_forward: false, which is not modelled",
        ),
        (
            {"offload_parameters": True, "parallelism": {"zero_stage": 3, "fp32_parameters": True}},
            "so set offload_optimizer to 1",
        ),
        ({"offload_optimizer": 0.5, "system": "L40S"}, "set cluster.host_memory_gb_per_s"),
    ],
)
def test_impossible_offloading_is_refused(keys: dict[str, Any], message: str) -> None:
    content: dict[str, Any] = {
        "system": keys.pop("system", "H100"),
        "model": {"num_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 4096},
        "parallelism": keys.pop("parallelism", {}),
        "training": {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16", **keys},
    }
    with pytest.raises(ConfigError, match=message):
        prepare(content, Path.cwd())


def test_a_run_without_offloading_has_no_copies() -> None:
    found = predicted()
    assert found.tasks.stages[0].end.on_host is None
    assert "host_link_us" not in stage_parts(found)[0].as_dict(with_host_link=False)
    assert replace(found.run, offload_optimizer=0.0) == found.run
