"""The search: its numbers are those of predict, its ranking is that of a full replay of every candidate."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.step.memory import GIB, step_memory
from predictor.core.step.memory_verdict import MEMORY_ERROR, MemoryVerdict
from predictor.core.step.prediction import predict
from predictor.layout_search.answer import SearchAnswer, search
from predictor.layout_search.candidate import Plan
from predictor.layout_search.footprint import Footprints
from predictor.layout_search.lines import plans
from predictor.layout_search.near_duplicates import Ranked
from predictor.layout_search.question import SearchQuestion, search_problem
from predictor.layout_search.rank import rank
from predictor.layout_search.report.ranking import bottleneck, render, to_csv, to_json, why
from predictor.layout_search.shared_parts import SharedParts
from predictor.layout_search.space import Space
from predictor.layout_search.stages import Pipelines
from predictor.layout_search.timer import Timer

SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "ffn_hidden_size": 2816,
    "activation": "swiglu",
    "sequence_length": 4096,
    "vocab_size": 32000,
}
SPARSE: dict[str, Any] = SMALL | {
    "moe": {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 1024, "num_dense_layers": 1}
}
UNFUSED: dict[str, Any] = SMALL | {
    "attention": "unfused",
    "attention_dropout": 0.1,
    "tied_embeddings": True,
    "num_key_value_heads": 8,
}
MIXED: dict[str, Any] = SMALL | {
    "layer_types": ["mamba2", "full_attention"],
    "mamba2": {"num_heads": 32, "head_dim": 64, "state_size": 128, "num_groups": 4},
    "num_mtp_layers": 1,
    "vision": {
        "num_layers": 2, "hidden_size": 256, "ffn_hidden_size": 512, "num_attention_heads": 4, "patch_size": 14,
        "image_size": 224, "tokens_per_image": 64,
    },
}  # fmt: skip
SWITCHES: dict[str, Any] = {
    "overlap_gradient_reduction": True,
    "overlap_parameter_gather": True,
    "overlap_tensor_parallel": True,
}


def config(path: Path, model: dict[str, Any], training: dict[str, Any] | None = None, **parallelism: Any) -> str:
    content = {
        "system": "Perlmutter",
        "model": model,
        "parallelism": parallelism,
        "training": {"micro_batch_size": 1, "num_micro_batches": 1, **(training or {})},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def spaces(folder: Path) -> Iterator[tuple[Space, SearchQuestion]]:
    """Return small spaces that differ in what their candidates' numbers depend on."""
    for name, model, training, switches in (
        ("dense", SMALL, {}, SWITCHES),
        ("experts", SPARSE, {}, SWITCHES),
        ("whole experts", SPARSE, {}, SWITCHES | {"expert_tensor_parallel_size": 1}),
        ("offloaded states", SMALL, {"offload_optimizer": 0.5}, SWITCHES),
        ("overlapped experts", SPARSE, {}, {"expert_dispatcher": "hybridep", "overlap_expert_parallel": True}),
        ("layers of several kinds", MIXED, {}, SWITCHES),
        ("adapters", SMALL, {"lora": {"rank": 16}}, SWITCHES),
        ("fused head", SMALL | {"loss": "fused_linear"}, {}, SWITCHES),
        ("unfused", UNFUSED, {}, {"blocking_transfers": True}),
        ("stops early", SMALL, {"recompute": "full", "recompute_stops_early": True}, {}),
        ("waiting", SMALL | {"hidden_size": 256, "ffn_hidden_size": 512}, {}, {}),
        ("turns", SMALL, {"synchronize_each_layer": True, "partition_activations": True}, {"fp32_gradients": True}),
    ):
        path = config(folder / f"{name}.yml", dict(model), training, **switches)
        question = SearchQuestion(path, num_gpus=16, global_batch_size=16)
        yield search_problem(question).space, question


def test_every_candidate_has_the_time_and_memory_of_a_prediction(tmp_path: Path) -> None:
    for space, question in spaces(tmp_path):
        system = search_problem(question).system
        pipelines = Pipelines(space)
        timer, footprints = Timer(space, system, pipelines), Footprints(space, pipelines)
        candidates = list(plans(space))
        assert len(candidates) > 100
        for plan in candidates[:: max(1, len(candidates) // 120)]:
            run = space.run(plan)
            prediction = predict(run, system)
            assert timer.step_us(plan) == pytest.approx(prediction.modelled_us, rel=1e-9), plan
            fullest = max(memory.total for memory in step_memory(prediction.tasks))
            assert footprints.memory_bytes(plan) == pytest.approx(fullest), plan
            assert timer.bound_us(plan) <= timer.step_us(plan) * (1 + 1e-9), plan


def test_the_ranking_is_that_of_all_candidates_replayed(tmp_path: Path) -> None:
    for space, question in spaces(tmp_path):
        system = search_problem(question).system
        pipelines = Pipelines(space)
        timer, footprints = Timer(space, system, pipelines), Footprints(space, pipelines)
        everything = [Ranked(timer.step_us(plan), footprints.memory_bytes(plan), plan) for plan in plans(space)]
        ordered = sorted(everything, key=lambda one: one.step_us)
        answer = rank(space, system, memory_gib=None, top=5, pareto=True)
        assert [one.step_us for one in answer.best] == pytest.approx([one.step_us for one in ordered[:5]])
        assert answer.considered == answer.fitting == len(everything)
        assert answer.replayed < len(everything)
        for one in answer.pareto:
            beaten = [
                other
                for other in everything
                if other.memory_bytes <= one.memory_bytes and other.step_us < one.step_us * (1 - 1e-9)
            ]
            assert not beaten, one
        assert answer.pareto[-1].step_us == pytest.approx(answer.best[0].step_us)


def test_candidates_use_all_gpus_and_the_whole_batch_and_are_valid(tmp_path: Path) -> None:
    for space, _ in spaces(tmp_path):
        seen: set[Plan] = set()
        for plan in plans(space):
            run = space.run(plan)
            assert run.layout.num_gpus == 16
            assert run.global_batch_size == 16
            assert sum(run.layers_per_stage) == space.model.num_layers
            assert plan not in seen
            seen.add(plan)


def test_whole_experts_are_shared_out_over_tensor_parallel_ranks_too(tmp_path: Path) -> None:
    path = config(tmp_path / "c.yml", dict(SPARSE), {}, expert_tensor_parallel_size=1, **SWITCHES)
    space = search_problem(SearchQuestion(path, num_gpus=16, global_batch_size=16)).space
    folded = [degrees for degrees in space.degrees() if degrees.expert > degrees.data * degrees.context]
    assert folded
    assert all(space.layout(degrees).expert_group().ranks == degrees.expert for degrees in folded)


def test_what_no_candidate_has_is_left_out(tmp_path: Path) -> None:
    layout = {"pipeline_parallel_size": 2, "schedule": "looped_bfs", "expert_tensor_parallel_size": 2}
    layout |= {"data_parallel_size": 2}
    training = {"num_micro_batches": 8, "offload_activation_layers": 2}
    path = config(tmp_path / "c.yml", dict(SPARSE), training, **SWITCHES, **layout)
    problem = search_problem(SearchQuestion(path, num_gpus=16, global_batch_size=16))
    assert problem.space.base.offload_activation_layers == 0
    assert not problem.space.keeps_experts_whole
    assert "looped_bfs" not in problem.space.schedules
    assert any("offload_activation_layers" in note for note in problem.notes)


def test_nothing_that_does_not_fit_is_shown(tmp_path: Path) -> None:
    path = config(tmp_path / "c.yml", dict(SMALL), **SWITCHES)
    all_of_them = search_problem(SearchQuestion(path, num_gpus=8, global_batch_size=64))
    leanest = min(memory for _, memory, _ in rank(all_of_them.space, all_of_them.system, None, 10_000).best) / GIB
    limited = search_problem(SearchQuestion(path, num_gpus=8, global_batch_size=64, memory_gib=leanest * 1.2))
    answer = search(limited, top=10)
    assert all(winner.ranked.memory_bytes <= leanest * 1.2 * GIB for winner in answer.winners)
    assert answer.ranking.fitting < answer.ranking.considered
    with pytest.raises(ConfigError, match=r"no layout fits: the leanest of .* GiB too much"):
        search(search_problem(SearchQuestion(path, num_gpus=8, global_batch_size=64, memory_gib=leanest * 0.9)), top=1)


def test_what_fits_for_certain_comes_first_and_faster_ones_beside_it(tmp_path: Path) -> None:
    path = config(tmp_path / "c.yml", dict(SMALL), **SWITCHES)
    whole = search_problem(SearchQuestion(path, num_gpus=8, global_batch_size=64))
    fullest = rank(whole.space, whole.system, None, 1).best[0].memory_bytes / GIB
    near = search(replace(whole, memory_gib=fullest * 1.02), top=3)
    assert {near.verdict(winner) for winner in near.winners} == {MemoryVerdict.FITS}
    assert {near.verdict(winner) for winner in near.unsure} == {MemoryVerdict.MAY_NOT_FIT}
    everything = rank(whole.space, whole.system, None, 10_000).best
    certain, limit = fullest * 1.02 * (1 - MEMORY_ERROR) * GIB, fullest * 1.02 * GIB
    sure = next(found for found in everything if found.memory_bytes <= certain)
    assert near.winners[0].ranked == sure
    faster = [found for found in everything if certain < found.memory_bytes <= limit and found.step_us < sure.step_us]
    assert near.unsure[0].ranked == faster[0]
    assert 1 <= len(near.unsure) <= min(len(faster), 3)
    assert "faster, but they may not fit" in render(near)
    assert [layout["fit"] for layout in to_json(near)["unsure"]] == ["may not fit"] * len(near.unsure)


def test_where_nothing_is_within_the_limit_what_may_fit_is_ranked(tmp_path: Path) -> None:
    path = config(tmp_path / "c.yml", dict(SMALL), **SWITCHES)
    whole = search_problem(SearchQuestion(path, num_gpus=8, global_batch_size=64))
    leanest = min(each.memory_bytes for each in rank(whole.space, whole.system, None, 10_000).best) / GIB
    tight = search(replace(whole, memory_gib=leanest * 0.95), top=10)
    assert {tight.verdict(winner) for winner in tight.winners} == {MemoryVerdict.MAY_NOT_FIT}
    assert tight.unsure == []
    assert any("No layout fits for certain" in note for note in tight.notes)


@pytest.fixture
def answer(tmp_path: Path) -> SearchAnswer:
    path = config(tmp_path / "c.yml", dict(SMALL), **SWITCHES)
    return search(search_problem(SearchQuestion(path, num_gpus=8, global_batch_size=64)), top=4, pareto=True)


def test_answers_agree_with_each_other(answer: SearchAnswer) -> None:
    assert answer.unsure == []
    content = to_json(answer)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    rows = list(csv.DictReader(StringIO(to_csv(answer))))
    assert [float(row["time_us"]) for row in rows] == [layout["time_us"] for layout in content["layouts"]]
    text = " ".join(render(answer).split())
    assert content["why"] == why(answer)
    assert content["why"] in text
    assert content["bottleneck"] == bottleneck(answer.winners[0])
    assert content["bottleneck"] in text
    times = [winner.ranked.step_us for winner in answer.winners]
    assert times == sorted(times)
    assert all(w.prediction.step.low_us < w.prediction.step.us < w.prediction.step.high_us for w in answer.winners)


def test_near_duplicates_name_keys_that_only_one_of_them_has(answer: SearchAnswer) -> None:
    (winner, *others), plan = answer.winners, answer.winners[0].ranked.plan
    grouped = plan._replace(zero_group=2)
    for own, near, differs in ((plan, grouped, 2), (grouped, plan, None)):
        ranked = winner.ranked._replace(plan=own)
        doubled = replace(winner, ranked=ranked, near_duplicates=(ranked._replace(plan=near),))
        (twin,) = to_json(replace(answer, winners=[doubled, *others]))["layouts"][0]["twins"]
        assert twin["layout"] == {"zero_group_size": differs}


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "found.csv"
    options = ["--system", "Perlmutter", "--gpus", "64", "--global-batch-size", "64", "--top", "3"]
    assert main(["search", "--model", "llama3-8b", *options, "--csv", str(table), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["layouts"]) == 3 == len(table.read_text(encoding="utf-8").splitlines()) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "llama3-70b", "--gpus", "4", "--global-batch-size", "4"], "no layout fits"),
        (["--model", "llama3-8b", "--gpus", "37", "--global-batch-size", "5"], "no layout"),
        (["--model", "llama3-8b", "--gpus", "0", "--global-batch-size", "8"], "--gpus is 0"),
        (["--model", "llama3-8b", "--gpus", "8"], "--global-batch-size is missing"),
        (["--model", "llama9", "--gpus", "8", "--global-batch-size", "8"], "--model is llama9"),
        (["--model", "llama3-8b", "--gpus", "8", "--global-batch-size", "8", "--schedule", "x"], "--schedule is x"),
        (["--model", "llama3-8b", "--gpus", "8", "--global-batch-size", "8", "--zero-stage", "4"], "--zero-stage is 4"),
        (["--model", "llama3-8b", "--gpus", "8", "--global-batch-size", "8", "--top", "0"], "--top is 0"),
        (["--model", "llama3-8b", "--gpus", "8", "--global-batch-size", "8", "--memory-gib", "-1"], "--memory-gib"),
    ],
)
def test_bad_input_is_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--system", "Perlmutter", *options]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_the_winner_is_written_as_a_configuration_that_predicts_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "winner.yml"
    for model in ("llama3-8b", config(tmp_path / "c.yml", dict(SPARSE), **SWITCHES)):
        options = ["--system", "Perlmutter", "--gpus", "16", "--global-batch-size", "64", "--json", "--write", str(out)]
        assert main(["search", "--model", model, *options]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert main([str(out), "--json"]) == 0
        predicted = json.loads(capsys.readouterr().out)
        assert predicted["step"]["time_us"] == pytest.approx(answer["layouts"][0]["time_us"], rel=1e-9)
        memory = max(stage["memory"]["total_gib"] for stage in predicted["stages"])
        assert memory == pytest.approx(answer["layouts"][0]["memory_gib"], rel=1e-9)


def test_a_configuration_says_its_own_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = {"micro_batch_size": 2, "num_micro_batches": 4}
    path = config(tmp_path / "c.yml", dict(SMALL), training, data_parallel_size=4)
    assert main(["search", "--model", path, "--gpus", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["global_batch_size"] == 32


@pytest.mark.parametrize(
    ("section", "given"),
    [
        ("training", {"recompute": "full", "recompute_num_layers": 2}),
        ("training", {"recompute": "full", "recompute_every": 2}),
        ("training", {"recompute": "selective", "recompute_modules": ["mlp"]}),
        ("parallelism", {"data_parallel_size": 8, "zero_stage": 3, "zero_group_size": 4}),
    ],
)
def test_keys_of_parts_are_left_out_with_a_note(tmp_path: Path, section: str, given: dict[str, Any]) -> None:
    sections: dict[str, dict[str, Any]] = {"training": {}, "parallelism": {}} | {section: given}
    path = config(tmp_path / "model.yml", SMALL, sections["training"], **sections["parallelism"])
    problem = search_problem(SearchQuestion(path, num_gpus=8, global_batch_size=16))
    key = list(given)[-1]
    assert any(f"{section}.{key}" in note for note in problem.notes)
    assert key not in problem.content[section]
    assert search(problem, 1, False).winners


def test_what_says_no_model_or_system_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deepspeed = tmp_path / "ds_config.json"
    deepspeed.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 1}}', encoding="utf-8")
    options = ["--gpus", "8", "--global-batch-size", "8"]
    for command, message in (
        (["--model", str(deepspeed), "--system", "H100"], "says no model"),
        (["--model", "llama3-8b"], "--system is missing"),
    ):
        assert main(["search", *command, *options]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_near_duplicate_names_keys_that_the_layout_lacks_and_the_other_way_round(tmp_path: Path) -> None:
    path = config(tmp_path / "small.yml", SMALL)
    answer = search(search_problem(SearchQuestion(path, num_gpus=8, global_batch_size=16)), top=1)
    (winner,) = answer.winners
    grouped = winner.ranked._replace(plan=winner.ranked.plan._replace(zero_group=4))
    told = [
        to_json(replace(answer, winners=[replace(winner, ranked=own, near_duplicates=(near,))]))["layouts"][0]["twins"]
        for own, near in ((winner.ranked, grouped), (grouped, winner.ranked))
    ]
    assert [twins[0]["layout"] for twins in told] == [{"zero_group_size": 4}, {"zero_group_size": None}]


def test_searches_that_share_parts_find_what_each_finds_alone() -> None:
    parts = SharedParts()
    for gpus, system in ((16, "H100"), (8, "H100"), (32, "H100"), (16, "A100_SXM")):
        question = SearchQuestion("llama3-8b", gpus, system=system, global_batch_size=64, framework="megatron")
        asked = search_problem(question)
        shared, alone = (rank(asked.space, asked.system, asked.memory_gib, 5, parts=each) for each in (parts, None))
        assert shared.best == alone.best
        assert shared.fitting == alone.fitting
