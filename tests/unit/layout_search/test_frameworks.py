"""A search for a framework: only what it runs, with the numbers of predict, as a configuration of its own."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError, NoLayoutError
from predictor.core.plan.framework_rules import RULES, rules_of
from predictor.core.plan.loading import prepare
from predictor.core.step.memory import GIB, step_memory
from predictor.core.step.prediction import predict
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.layout_search.answer import configuration, search
from predictor.layout_search.candidate import Plan
from predictor.layout_search.footprint import Footprints
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchProblem, SearchQuestion, search_problem
from predictor.layout_search.rank import rank
from predictor.layout_search.report.ranking import render, to_json
from predictor.layout_search.stages import Pipelines
from predictor.layout_search.timer import Timer
from tests.unit.layout_search.test_search import SMALL, SPARSE, config


def problem(framework: str, folder: Path, experts: bool = False, gpus: int = 16) -> SearchProblem:
    path = config(folder / "c.yml", dict(SPARSE if experts else SMALL), {"compiled": framework == "torchtitan"})
    return search_problem(SearchQuestion(path, num_gpus=gpus, global_batch_size=16, framework=framework))


def preset_problem(framework: str, model: str = "llama3-8b", gpus: int = 64, **options: Any) -> SearchProblem:
    question: dict[str, Any] = {
        "num_gpus": gpus,
        "system": "H100",
        "global_batch_size": 256,
        "framework": framework,
        **options,
    }
    return search_problem(SearchQuestion(model, **question))


@pytest.mark.parametrize("framework", RULES)
@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_every_candidate_has_the_time_and_memory_of_a_prediction(framework: str, experts: bool, tmp_path: Path) -> None:
    asked = problem(framework, tmp_path, experts)
    space = replace(asked.space, offloads=True)
    pipelines = Pipelines(space)
    timer, footprints = Timer(space, asked.system, pipelines), Footprints(space, pipelines)
    candidates = list(plans(space))
    assert len(candidates) > 50
    for plan in candidates[:: max(1, len(candidates) // 120)]:
        prediction = predict(space.run(plan), asked.system)
        assert timer.step_us(plan) == pytest.approx(prediction.modelled_us, rel=1e-9), plan
        assert footprints.memory_bytes(plan) == pytest.approx(max(m.total for m in step_memory(prediction.tasks)))
        assert timer.bound_us(plan) <= timer.step_us(plan) * (1 + 1e-9), plan


def runs(framework: str, model: str = "llama3-8b", gpus: int = 64) -> list[tuple[Plan, TrainingRun]]:
    space = preset_problem(framework, model, gpus).space
    return [(plan, space.run(plan)) for plan in plans(space)]


def test_megatron_runs_its_schedules_and_shares_out_the_optimizer_alone() -> None:
    for plan, run in runs("megatron"):
        assert plan.schedule in ("1f1b", "interleaved_1f1b")
        assert plan.zero_stage <= 1
        assert len(set(run.layers_per_stage)) == 1 or plan.num_chunks == 1
        assert run.overlap_linear_traffic == plan.sequence_parallel
        assert plan.schedule == "1f1b" or plan.num_micro_batches % plan.degrees.pipeline == 0


def test_megatron_recomputes_activations_of_experts() -> None:
    modes = {plan.recompute: run.recompute_modules for plan, run in runs("megatron", "mixtral-8x7b")}
    assert modes == {Recompute.NONE: (), Recompute.SELECTIVE: ("moe_act",), Recompute.FULL: ()}
    assert Recompute.SELECTIVE not in {plan.recompute for plan, _ in runs("megatron", "llama3-8b")}


def test_megatron_counts_embedding_and_loss_as_layers_where_layers_do_not_divide() -> None:
    found = {plan.num_chunks: run for plan, run in runs("megatron", "llama3.1-405b", 64) if plan.degrees.pipeline == 8}
    assert found[8].layers_per_stage == (15, 16, 16, 16, 16, 16, 16, 15)
    assert 3 not in found


def test_megatron_gives_a_prime_number_of_layers_lighter_ends(tmp_path: Path) -> None:
    path = config(tmp_path / "c.yml", SMALL | {"num_layers": 61})
    space = search_problem(SearchQuestion(path, num_gpus=16, global_batch_size=64, framework="megatron")).space
    splits = {plan.degrees.pipeline: space.run(plan).layers_per_stage for plan in plans(space)}
    assert splits[16] == (3, *[4] * 14, 2)
    assert splits[2] == (31, 30)
    chunks = {(plan.degrees.pipeline, plan.num_chunks): space.run(plan).chunk_layers for plan in plans(space)}
    assert chunks[4, 4] == ((4,) * 4, (4,) * 4, (4,) * 4, (4, 4, 4, 1))  # as NVIDIA lays out DeepSeek-V3
    assert chunks[8, 4] == ((1, 2, 2, 2), *[(2,) * 4] * 6, (2, 2, 2, 0))
    assert all(sum(map(sum, split)) == 61 for split in chunks.values())


def test_megatron_may_keep_experts_whole_beside_tensor_parallelism() -> None:
    found = {plan.degrees for plan, _ in runs("megatron", "mixtral-8x7b")}
    splits = {(degrees.tensor, degrees.expert_split) for degrees in found}
    assert {(1, None), (2, None), (2, 1), (8, 1)} <= splits
    assert (1, 1) not in splits
    folded = [degrees for degrees in found if degrees.expert > degrees.data * degrees.context]
    assert folded
    assert all(degrees.expert_split is not None for degrees in folded)


def test_megatron_may_split_experts_over_fewer_ranks_than_all_else() -> None:
    found = {plan.degrees for plan, _ in runs("megatron", "mixtral-8x7b")}
    assert {degrees.expert_split for degrees in found if degrees.tensor == 8} == {None, 1, 2, 4}
    for degrees in found:
        ranks = degrees.tensor * degrees.context * degrees.data
        assert ranks % (degrees.expert * (degrees.expert_split or degrees.tensor)) == 0


def test_megatron_may_leave_the_ends_of_the_model_alone_on_their_chunks() -> None:
    space = preset_problem("megatron", "llama3.1-405b", 1024).space
    split = space.split(16, "interleaved_1f1b", 8)
    assert split is not None
    assert split.chunks is None  # embedding and loss count as layers
    assert split.stages == (7, *[8] * 14, 7)


def test_megatron_gives_the_stage_of_multi_token_prediction_the_fewest_layers() -> None:
    space = preset_problem("megatron", "deepseek-v3", 256).space
    with_mtp = replace(space, base=replace(space.base, model=replace(space.model, num_mtp_layers=1)))
    for of, wanted in ((space, (7, *[8] * 6, 6)), (with_mtp, (*[8] * 7, 5))):
        split = of.split(8, "1f1b", 1)
        assert split is not None
        assert split.stages == wanted


def test_as_few_layers_are_recomputed_as_fit() -> None:
    problem = preset_problem("megatron", "llama3-70b", 16, max_tensor_parallel=2, max_context_parallel=1)
    space, pipelines = problem.space, Pipelines(problem.space)
    timer, footprints = Timer(space, problem.system, pipelines), Footprints(space, pipelines)
    whole = next(
        plan for plan in plans(space) if plan.recomputes_all and plan.degrees[2] == 8 and plan.micro_batch_size == 1
    )
    sizes = [footprints.memory_bytes(whole._replace(recompute_layers=n)) for n in range(1, 10)]
    assert sizes == sorted(sizes, reverse=True)
    for n, size in enumerate(sizes, 1):
        plan = whole._replace(recompute_layers=n)
        prediction = predict(space.run(plan), problem.system)
        assert timer.step_us(plan) == pytest.approx(prediction.modelled_us, rel=1e-9)
        assert size == pytest.approx(max(m.total for m in step_memory(prediction.tasks)))
        assert timer.floor_us(plan) <= timer.step_us(plan) < timer.step_us(whole)
    assert footprints.least_recomputed(whole, sizes[3]) == whole._replace(recompute_layers=4)
    assert footprints.least_recomputed(whole, sizes[-1] * 0.99) is None
    assert footprints.least_recomputed(whole, inf) is None


def test_a_winner_may_recompute_some_layers() -> None:
    problem = preset_problem("megatron", "llama3-8b", 8, max_tensor_parallel=1, max_context_parallel=1)
    answer = search(replace(problem, memory_gib=48.0), 3)
    plan = answer.winners[0].ranked.plan
    assert plan.recompute_layers
    written = configuration(answer, answer.winners[0])
    assert written["training"]["recompute_num_layers"] == plan.recompute_layers
    loaded = prepare(written, Path.cwd())
    assert predict(loaded.run, loaded.system).modelled_us == pytest.approx(answer.winners[0].ranked.step_us, rel=1e-9)
    assert f"recompute full ({plan.recompute_layers} layers a chunk)" in render(answer)


def test_a_batch_that_grows_begins_with_whole_groups_of_micro_batches() -> None:
    space = replace(preset_problem("megatron", gpus=32).space, first_batch=32)
    grown = [plan for plan in plans(space) if plan.schedule == "interleaved_1f1b"]
    first = {plan: 32 // (plan.micro_batch_size * plan.degrees.data) for plan in grown}
    assert grown
    assert all(first[plan] % plan.degrees.pipeline == 0 for plan in grown)
    assert any(plan.num_micro_batches > first[plan] for plan in grown)


def test_torchtitan_keeps_experts_whole_that_ranks_share_out() -> None:
    found = {plan.degrees for plan, _ in runs("torchtitan", "mixtral-8x7b")}
    beside_tensors = {(degrees.expert > 1, degrees.expert_split) for degrees in found if degrees.tensor > 1}
    assert beside_tensors == {(False, None), (True, 1)}
    assert {degrees.expert_split for degrees in found if degrees.tensor == 1} == {None}


def test_what_is_not_looked_at_does_not_fit() -> None:
    for framework, model in (("megatron", "deepseek-v2-lite"), ("torchtitan", "llama3-8b"), (None, "gpt3-175b")):
        problem = search_problem(
            SearchQuestion(model, num_gpus=32, system="H100", global_batch_size=64, framework=framework)
        )
        footprints = Footprints(problem.space, Pipelines(problem.space))
        limit = 40.0 if model != "gpt3-175b" else 120.0
        needs = [footprints.memory_bytes(plan) / GIB for plan in plans(problem.space)]
        found = rank(problem.space, problem.system, limit, 1)
        assert found.considered == len(needs)
        assert 0 < found.fitting == sum(need <= limit for need in needs) < len(needs)


def test_activations_go_to_the_host_where_whole_layers_would_be_computed_again() -> None:
    asked = preset_problem("megatron", gpus=8, system="GB200", sequence_length=32768, memory_gib=50.0)
    computed_again = rank(asked.space, asked.system, asked.memory_gib, 1).best[0]
    assert computed_again.plan.recompute is Recompute.FULL
    answer = search(asked, 1)
    assert answer.winners[0].ranked.step_us < computed_again.step_us
    written = configuration(answer, answer.winners[0])
    assert "core_attn" in written["training"]["offload_modules"]
    assert any("training.offload_modules" in note for note in answer.notes)
    loaded = prepare(written, Path.cwd())
    assert predict(loaded.run, loaded.system).modelled_us == pytest.approx(answer.winners[0].ranked.step_us, rel=1e-9)
    roomy = search(replace(asked, memory_gib=180.0), 1)
    assert not roomy.winners[0].ranked.plan.offload_modules


def test_optimizer_states_go_to_the_host_where_nothing_else_fits() -> None:
    problem = preset_problem("megatron", "llama3-70b", 8)
    with pytest.raises(NoLayoutError, match="no layout fits"):
        rank(problem.space, problem.system, problem.memory_gib, 1)
    answer = search(problem, 1)
    assert any("kept and updated in host memory" in note for note in answer.notes)
    written = configuration(answer, answer.winners[0])
    assert written["training"]["offload_optimizer"] == 1.0
    loaded = prepare(written, Path.cwd())
    assert predict(loaded.run, loaded.system).modelled_us == pytest.approx(answer.winners[0].ranked.step_us, rel=1e-9)
    with pytest.raises(NoLayoutError, match="no layout fits"):
        search(preset_problem("torchtitan", "llama3-70b", 8), 1)


def test_torchtitan_leaves_a_loss_uncompiled_where_its_logits_are_whole() -> None:
    content = {"system": "H100", "model": {"preset": "llama3-8b", "loss": "torch_eager"}}
    space = search_problem(SearchQuestion(content, 16, global_batch_size=16, framework="torchtitan")).space
    losses = {(plan.degrees.tensor == 1, str(space.model_of(plan).loss)) for plan in plans(space)}
    assert losses == {(True, "torch_eager"), (False, "vocabulary_parallel")}


def test_torchtitan_counts_embedding_and_output_as_layers() -> None:
    found = {(plan.degrees.pipeline, plan.schedule, plan.num_chunks): run for plan, run in runs("torchtitan")}
    assert found[4, "1f1b", 1].layers_per_stage == (8, 9, 8, 7)
    assert found[4, "interleaved_1f1b", 2].chunk_layers == ((4, 4), (5, 4), (4, 4), (4, 3))
    assert {chunks for stages, _, chunks in found if stages == 4} == {1, 2, 3}  # three of 34 layers each make 12


def test_torchtitan_has_v_shaped_pipelines() -> None:
    found = {(plan.degrees.pipeline, plan.schedule): run for plan, run in runs("torchtitan")}
    for schedule in ("zbv", "dualpipe_v"):
        assert found[4, schedule].chunk_layers == ((4, 3), (5, 4), (4, 4), (4, 4))
        assert schedule not in {plan.schedule for plan, _ in runs("megatron")}
    wide = search_problem(SearchQuestion("llama3-8b", num_gpus=64, system="H100", global_batch_size=256))
    assert not {plan.schedule for plan in plans(wide.space)} & {"zbv", "dualpipe_v"}
    alone = SearchQuestion("llama3-8b", num_gpus=64, system="H100", global_batch_size=256, schedules=("zbv",))
    assert {plan.schedule for plan in plans(search_problem(alone).space)} == {"1f1b", "zbv"}


def test_torchtitan_may_share_out_weights_in_groups_of_a_node_or_more() -> None:
    found: dict[tuple[int, int], set[int | None]] = {}
    for plan, run in runs("torchtitan"):
        if plan.degrees.pipeline == 1:
            found.setdefault((plan.degrees.tensor, plan.degrees.context), set()).add(plan.zero_group)
        assert run.zero_group_size == plan.zero_group
    assert found[1, 1] == {None, 8, 32}
    assert found[2, 2] == {None, 4, 16}
    assert {plan.zero_group for plan, _ in runs("megatron")} == {None}


def test_torchtitan_shards_weights_unless_it_only_replicates() -> None:
    for plan, run in runs("torchtitan"):
        degrees = plan.degrees
        only_replicates = degrees.tensor * degrees.pipeline * degrees.context == 1
        assert plan.zero_stage == 3 or (
            plan.zero_stage == 0 and (only_replicates or degrees.data * degrees.context == 1)
        )
        assert plan.sequence_parallel == (degrees.tensor > 1)
        assert run.reshard_after_forward == (plan.zero_stage == 0 or degrees.pipeline == 1)
        assert plan.recompute is not Recompute.SELECTIVE
        assert (run.model.loss == "torch") == (degrees.tensor == 1)


def test_deepspeed_has_no_ring_and_no_sharded_weights_in_a_pipeline() -> None:
    for plan, _ in runs("deepspeed"):
        degrees = plan.degrees
        assert degrees.context == 1
        assert plan.schedule == "1f1b"
        assert plan.zero_stage <= (1 if degrees.pipeline > 1 else 2 if degrees.tensor > 1 else 3)
        assert not plan.sequence_parallel


@pytest.mark.parametrize("framework", RULES)
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_the_winner_is_a_configuration_that_predicts_the_same(framework: str, model: str) -> None:
    answer = search(preset_problem(framework, model), top=3)
    for winner in answer.winners:
        loaded = prepare(configuration(answer, winner), Path.cwd())
        assert loaded.run == winner.prediction.run
        assert predict(loaded.run, loaded.system).modelled_us == pytest.approx(winner.ranked.step_us, rel=1e-9)


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_a_framework_runs_its_own_candidates_and_no_others(model: str) -> None:
    wide = search_problem(SearchQuestion(model, num_gpus=64, system="H100", global_batch_size=256)).space
    every = list(plans(wide))
    for name, rules in RULES.items():
        own = list(plans(preset_problem(name, model).space))
        assert all(wide.runs(plan, rules) for plan in own[::11])
        among = set(own)
        assert all(wide.runs(plan, rules) == (plan in among) for plan in every[::11])
    zero_bubble = next(plan for plan in every if plan.schedule == "zero_bubble_h1")
    assert not any(wide.runs(zero_bubble, rules) for rules in RULES.values())


def test_layouts_that_no_framework_runs_are_marked() -> None:
    question = SearchQuestion("llama3-8b", 64, system="H100", global_batch_size=256, schedules=("zero_bubble_h1",))
    answer = search(search_problem(question), top=100)
    marked = [line for line in render(answer).splitlines() if "outside every framework's rules" in line]
    assert len(marked) == sum(not layout["frameworks"] for layout in to_json(answer)["layouts"]) > 0
    assert any("zero_bubble_h1" in line for line in marked)
    assert not any("zero_bubble_h1" in line for line in set(render(answer).splitlines()) - set(marked))


def test_an_unknown_framework_is_one_line() -> None:
    with pytest.raises(ConfigError, match="--framework is megatorn; expected megatron, torchtitan, deepspeed"):
        rules_of("megatorn")


def test_tensor_parallel_groups_stay_inside_a_node_unless_asked() -> None:
    def widest(**options: Any) -> int:
        return max(plan.degrees.tensor for plan in plans(preset_problem("megatron", "llama3-70b", **options).space))

    assert widest() == 8
    assert widest(tensor_parallel_across_nodes=True) > 8
    assert widest(max_tensor_parallel=16) == 16
    assert widest(system="GB200") > 8


def test_tensor_parallel_ranks_split_adapters_too() -> None:
    content = {"system": "GB300", "model": "llama3-70b", "training": {"lora": {"rank": 16}}}
    question = SearchQuestion(content, 64, global_batch_size=64, framework="megatron", max_tensor_parallel=64)
    assert max(plan.degrees.tensor for plan in plans(search_problem(question).space)) == 16
