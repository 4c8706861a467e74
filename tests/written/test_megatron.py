"""Scripts that are written for Megatron-LM pass its own parser and validators, in every release that PyPI has whole."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import in_full, prepare
from predictor.core.schema.sections import validate
from predictor.core.step.prediction import predict
from predictor.formats.megatron.releases import Release, refusals, release
from predictor.formats.megatron.releases import arguments as by_name
from predictor.formats.megatron.writer import arguments_of
from predictor.formats.writers import written
from tests.property.test_writers import megatron_runs
from tests.unit.formats.test_megatron_writer import arguments
from tests.written.judges import accepted, verdicts
from tests.written.questions import COUNT, layouts

JUDGED = [release(name) for name in ("0.17", "0.18", "0.19")]
DATA = ["--tokenizer-type", "NullTokenizer", "--mock-data", "--lr", "1e-4", "--train-iters", "10"]
# Arguments that are put into a list of them or taken out of it, to be refused or not.
CHANGES = (
    *("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather", "--sequence-parallel"),
    *("--tp-comm-overlap", "--moe-grouped-gemm", "--bf16", "--use-precision-aware-optimizer", "--fp8-param-gather"),
    *("--overlap-moe-expert-parallel-comm", "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"),
    *("--recompute-granularity full", "--recompute-granularity selective --recompute-modules moe_act"),
    *("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "--mtp-num-layers 1"),
    *("--recompute-granularity selective --recompute-modules mla_up_proj", "--group-query-attention"),
    *("--distribute-saved-activations", "--no-check-for-nan-in-loss-and-grad", "--multi-latent-attention"),
    *("--moe-router-enable-expert-bias", "--num-virtual-stages-per-pipeline-rank 2", "--optimizer-cpu-offload"),
    *("--use-transformer-engine-op-fuser", "--cuda-graph-impl full_iteration", "--cuda-graph-modules attn"),
    *("--fine-grained-activation-offloading --offload-modules attn_proj", "--cpu-offloading-num-layers 1"),
    *("--reuse-grad-buf-for-mxfp8-param-ag", "--fp8-format hybrid --fp8-recipe delayed", "--moe-latent-size 256"),
)


def case(words: list[str], num_gpus: int) -> dict[str, Any]:
    return {"arguments": [*" ".join(words).replace("'", "").split(), *DATA], "world_size": num_gpus}


@pytest.mark.parametrize("series", JUDGED, ids=str)
def test_sixty_questions_are_accepted_and_read_back_to_the_same_step(series: Release, tmp_path: Path) -> None:
    asked = layouts("megatron")
    assert len(asked) == COUNT == 60
    cases = []
    for layout in asked:
        options = arguments(layout.configuration, str(series))
        words = [f"{name} {' '.join(values)}" for name, values in options.items() if "$" not in " ".join(values)]
        words = [word for word in words if word.split()[0] not in ("--tokenizer-type", "--tokenizer-model")]
        cases.append(
            case(
                [word for word in words if word.split()[0] not in ("--lr", "--data-path", "--train-iters")],
                layout.num_gpus,
            )
        )
        script = tmp_path / "run.sh"
        script.write_text(written(layout.configuration, "megatron", tmp_path, str(series)), encoding="utf-8")
        run, again = prepare(layout.configuration, tmp_path), prepare({"system": "H100", "from": str(script)}, tmp_path)
        step = predict(run.run, run.system).step.us
        assert predict(again.run, again.system).step.us == pytest.approx(step, rel=1e-9), layout.name
    answers = verdicts(f"megatron-core-{series.newest}", "judge_megatron.py", cases, tmp_path)
    accepted([layout.name for layout in asked], answers)


@cache
def configurations(count: int) -> list[dict[str, Any]]:
    """Return configurations with switches that no search sets, the same ones every time."""
    found: list[dict[str, Any]] = []

    @seed(1)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(megatron_runs())
    def draw(content: dict[str, Any]) -> None:
        found.append(content)

    draw()
    return found


@pytest.mark.parametrize("series", JUDGED, ids=str)
def test_the_table_of_a_release_refuses_what_it_refuses(series: Release, tmp_path: Path) -> None:
    random, cases, expected = Random(0), [], []
    for content in configurations(240):
        full, _ = in_full(content, tmp_path)
        num_gpus = prepare(full, tmp_path).run.layout.num_gpus
        try:
            words = [word for part in arguments_of(validate(full), series) for word in part]
        except ConfigError:
            continue
        change = random.choice(CHANGES)
        changed = {word for word in change.split() if word.startswith("--")}
        without = [word for word in words if not changed & set(word.split())]
        words = without + [change] * (len(without) == len(words) or random.random() < 0.5)
        cases.append(case(words, num_gpus))
        expected.append(refusals(by_name(words), series))
    answers = verdicts(f"megatron-core-{series.newest}", "judge_megatron.py", cases, tmp_path)
    differ = [
        f"{said or 'accepted'} | {answer or 'accepted'}"
        for said, answer in zip(expected, answers, strict=True)
        if bool(said) != (answer is not None)
    ]
    assert not differ, "\n".join([f"{len(differ)} of {len(cases)}", *differ])
    assert 0.2 < sum(map(bool, expected)) / len(expected) < 0.8
