"""The host: launches by processor, work by software stack, and the interval that both make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from predictor.core.base.errors import ConfigError
from predictor.core.costs.cost import Cost, Source
from predictor.core.hardware.host_processor import UNKNOWN, host_of, processors
from predictor.core.plan.loading import prepare
from predictor.core.report.json_document import host_notes
from predictor.core.schema.host_section import HostSection, on_host
from predictor.core.step.host import launch_cost, lead, waiting
from predictor.core.step.prediction import Prediction, predict
from predictor.core.step.stages import time_block
from predictor.core.step.task_times import time_update
from predictor.core.workload.host_stack import host_stacks, layer_work, slowdown
from predictor.core.workload.software import Framework
from predictor.core.workload.stage_end import stage_end
from predictor.core.workload.transformer import LayerKind
from predictor.core.workload.transformer_step import layer_block
from tests.unit.core.step.test_step_time import unit_system
from tests.unit.core.workload.test_workloads import DENSE, RUN

TINY: dict[str, Any] = {
    "model": {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "sequence_length": 256},
    "training": {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16", "framework": "megatron-lm"},
}


def predicted(system: str = "H100", **host: Any) -> tuple[Prediction, list[str]]:
    """Return the prediction of a run of short kernels, and the notes on its host."""
    loaded = prepare({**TINY, "system": system, **({"host": host} if host else {})}, Path())
    prediction = predict(loaded.run, loaded.system)
    return prediction, host_notes(prediction, loaded.system.hardware)


def test_every_system_names_a_known_processor_and_every_framework_a_known_stack() -> None:
    stacks = host_stacks()
    assert set(stacks.frameworks.values()) <= set(stacks.stacks)
    for name in ("H100", "A100_SXM", "GB200", "MI300X"):
        loaded = prepare({**TINY, "system": name}, Path())
        host = host_of(loaded.system.hardware)
        assert host is not None
        assert not host.is_own
        assert host.forward.low_us < host.forward.us < host.forward.high_us


def test_a_copied_launch_says_nothing_of_a_host() -> None:
    unknown, (_, hardware) = (
        processors()[UNKNOWN],
        ("MI300X", prepare({**TINY, "system": "MI300X"}, Path()).system.hardware),
    )
    assert all(quantity.source.startswith("as on ") for quantity in hardware.host.values())
    host = host_of(hardware)
    assert host is not None
    assert host.forward.us == unknown.forward.value


def test_launches_measured_on_a_system_are_its_own() -> None:
    host = host_of(unit_system(launch_forward_us=20.0, launch_backward_us=30.0).hardware)
    assert host is not None
    assert host.is_own
    assert (host.forward.us, host.backward.us) == (20.0, 30.0)
    assert host_of(unit_system().hardware) is None


def test_the_interval_of_a_wait_is_that_of_its_launches() -> None:
    launching, device = Cost(300.0, 150.0, 450.0, Source.EXTRAPOLATED), Cost(200.0, 100.0, 400.0, Source.MEASURED)
    assert waiting(launching, device, synchronized=False) == Cost(100.0, 0.0, 250.0, Source.EXTRAPOLATED)
    assert waiting(launching, device, synchronized=True) == Cost(300.0, 150.0, 450.0, Source.EXTRAPOLATED)
    longer = waiting(launching, Cost(400.0, 400.0, 400.0, Source.MEASURED), synchronized=False)
    assert longer == Cost(0.0, 0.0, 50.0, Source.MEASURED)


def test_a_lead_shortens_the_next_wait() -> None:
    launching, device = Cost(300.0, 150.0, 450.0, Source.EXTRAPOLATED), Cost(400.0, 400.0, 400.0, Source.MEASURED)
    ahead = lead(launching, device, 0.5)
    assert ahead == Cost(50.0, 125.0, 0.0, Source.EXTRAPOLATED)
    short = Cost(200.0, 200.0, 200.0, Source.MEASURED)
    assert waiting(launching, short, synchronized=False, lead=ahead) == Cost(50.0, 0.0, 250.0, Source.EXTRAPOLATED)
    least = Cost(80.0, 80.0, 80.0, Source.EXTRAPOLATED)
    assert waiting(launching, short, synchronized=False, least=least, lead=ahead).us == 80.0


@pytest.mark.parametrize(
    ("framework", "training", "parallelism", "keeps"),
    [
        ("megatron-lm", {}, {}, True),
        ("torchtitan", {}, {}, True),
        ("transformers", {}, {}, False),  # reads the loss of every micro-batch
        ("megatron-lm", {"blocking_launches": True}, {}, False),
        ("megatron-lm", {}, {"pipeline_parallel_size": 2, "blocking_transfers": True}, False),
        ("megatron-lm", {}, {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 2}, True),
    ],
)
def test_the_host_keeps_its_lead_where_it_waits_for_nothing(
    framework: str, training: dict[str, Any], parallelism: dict[str, Any], keeps: bool
) -> None:
    content = {**TINY, "system": "H100", "parallelism": parallelism}
    run = prepare({**content, "training": TINY["training"] | training | {"framework": framework}}, Path()).run
    block = layer_block(run, run.kind(0))
    assert block.host is not None
    assert (block.host.lead > 0.0) is keeps
    deep = layer_block(replace(run, model=replace(run.model, num_layers=400)), run.kind(0)).host
    assert deep is not None
    assert deep.lead == block.host.lead or 0.0 < deep.lead < 1.0


def test_a_forward_pass_of_many_launches_hides_behind_a_long_backward_pass() -> None:
    content = {**TINY, "system": "H100"}
    run = prepare(content, Path()).run
    block = layer_block(run, run.kind(0))
    assert block.host is not None
    kernels_us = time_block(unit_system(), block).forward.cost.us
    system = unit_system(launch_forward_us=1.1 * kernels_us / block.host.forward, launch_backward_us=1e-3)
    alone = time_block(system, replace(block, host=block.host._replace(lead=0.0)))
    behind = time_block(system, block)
    assert alone.forward.host.us > 0.0 == behind.forward.host.us
    assert (alone.forward.cost.us, behind.forward.cost.us) == pytest.approx((1.1 * kernels_us, kernels_us))


def test_a_run_of_long_kernels_may_still_wait_on_a_slower_host() -> None:
    system = unit_system(launch_forward_us=20.0).hardware
    cost = launch_cost(system, 10.0, backward=False)
    assert cost.low_us < cost.us == 200.0 < cost.high_us


def test_a_named_processor_narrows_the_interval() -> None:
    unnamed, notes = predicted()
    named, own = predicted(processor="xeon_8480c")
    assert named.host.us == unnamed.host.us > 0.0
    assert named.host.high_us < unnamed.host.high_us
    assert "microbench host" in notes[0]
    assert "microbench host" not in own[0]


def test_a_measured_host_replaces_the_processor() -> None:
    alone, _ = predicted(launch_forward_us=6.0, launch_backward_us=7.0, slowdown=1.0)
    together, _ = predicted(launch_forward_us=6.0, launch_backward_us=7.0, slowdown=1.8)
    assert alone.step.us < together.step.us < predicted()[0].step.us


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"processor": "xeon_8480"}, "xeon_8480c"),
        ({"launch_forward_us": 5.0}, "launch_backward_us"),
        ({"launch_forward_us": 5.0, "launch_backward_us": 5.0, "processor": "grace"}, "not both"),
        ({"launch_forward_us": 5e5, "launch_backward_us": 5.0}, "taken for a slip"),
        ({"slowdown": 0.5}, "greater than or equal to 1"),
    ],
)
def test_a_host_section_says_what_is_wrong(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=said):
        HostSection.model_validate(given)


def test_a_host_without_numbers_changes_nothing() -> None:
    hardware = unit_system(launch_forward_us=20.0).hardware
    assert on_host(hardware, HostSection(slowdown=2.0), "a test") is hardware


def test_work_beside_launches_is_the_softwares() -> None:
    plain = host_stacks().stacks["plain"].layer
    engine = replace(RUN, framework=Framework.MEGATRON_LM, precision="bf16")
    assert layer_work(replace(RUN, framework=None)) == plain
    assert layer_work(replace(engine, precision="fp16")) == host_stacks().stacks["megatron_local"].layer
    assert layer_work(engine) == host_stacks().stacks["megatron_te"].layer
    sharded = replace(RUN, framework=Framework.TORCHTITAN, zero_stage=3)
    assert layer_work(sharded)[0] == plain[0] + host_stacks().fsdp2.layer[0]
    compiled = host_stacks().stacks["compiled"].layer
    assert layer_work(replace(RUN, compiled=True, framework=None)) == plain
    assert layer_work(replace(engine, compiled=True)) == compiled
    assert slowdown(engine) == 1.5
    assert slowdown(replace(engine, host_slowdown=1.1)) == 1.1
    assert slowdown(replace(RUN, framework=Framework.GPT_NEOX)) == 1.0


def test_a_system_file_may_name_its_processor(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("like: H100\nhost: {processor: grace}\n")
    loaded = prepare({**TINY, "system": "mine.yaml"}, tmp_path)
    host = host_of(loaded.system.hardware)
    assert host is not None
    assert host.name == "NVIDIA Grace"


def test_a_steps_end_waits_for_work_on_every_tensor() -> None:
    engine = replace(RUN, framework=Framework.MEGATRON_LM, precision="bf16", layers_per_stage=(2, 2))
    owned = engine.parameters_of([(DENSE, 2)], is_first=True, is_last=False)
    few, many = (stage_end(replace(engine, layers_per_stage=split), 0, owned) for split in ((1, 3), (3, 1)))
    assert many.launches == pytest.approx(3 * few.launches)
    assert few.exposed_launches == many.exposed_launches > 0
    system = unit_system(launch_forward_us=10.0)
    waits, without = time_update(system, many).cost, time_update(unit_system(), many).cost
    assert waits.us > without.us + 10.0 * many.exposed_launches - 1e-6
    assert stage_end(replace(engine, cuda_graphs=True), 0, owned).launches == 0.0


def test_modules_that_run_again_alone_cost_the_host_their_share_of_a_layer() -> None:
    def second_forward(recompute: str) -> tuple[float, float]:
        training = {**TINY["training"], "recompute": recompute}
        loaded = prepare(
            {"model": {**TINY["model"], "attention": "unfused"}, "training": training, "system": "H100"}, Path()
        )
        block = layer_block(loaded.run, LayerKind())
        assert block.host is not None
        kernels = sum(task.launches for task in block.recompute.calls())
        return block.host.recompute, kernels

    (part, few), (whole, many) = second_forward("selective"), second_forward("full")
    assert 0 < few < many
    assert part / few == pytest.approx(whole / many, rel=0.2), "beside the states of random generators"
