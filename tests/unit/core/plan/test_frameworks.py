"""What frameworks do by default: every value has a source, and every key is one of a configuration."""

from __future__ import annotations

import pytest
import yaml

from predictor.core.plan.short_config import expand
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.section import Section
from predictor.core.schema.sections import TrainingSection, validate
from predictor.core.workload import frameworks
from predictor.core.workload.frameworks import (
    DEEPSPEED,
    FSDP2,
    GPT_NEOX,
    MEGATRON_LM,
    SECTIONS,
    FrameworkDefaults,
)
from tests.unit.examples import full_form, short_form

FRAMEWORKS = [value for value in vars(frameworks).values() if isinstance(value, FrameworkDefaults)]
KEYS: dict[str, type[Section]] = {"model": ModelSection, "parallelism": ParallelismSection, "training": TrainingSection}


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_defaults_are_a_configuration(framework: FrameworkDefaults) -> None:
    assert framework.source
    given = {name: framework.section(name) for name in SECTIONS}
    for name, section in given.items():
        assert section.keys() <= KEYS[name].model_fields.keys()
    assert yaml.safe_load(yaml.safe_dump(given)) == given
    config = validate(full_form(**given))
    for name, section in given.items():
        assert {key: getattr(getattr(config, name), key) for key in section} == section


def test_every_default_is_a_key_of_some_section() -> None:
    listed = {key for keys in SECTIONS.values() for key in keys}
    assert set().union(*(framework.keys for framework in FRAMEWORKS)) <= listed | {
        "bucket_elements_per_replica",
        "fp32_adapters",
    }
    assert len({framework.name for framework in FRAMEWORKS}) == len(FRAMEWORKS)


def test_buckets_grow_with_replicas_where_the_framework_says_so() -> None:
    assert MEGATRON_LM.bucket_elements(8) == 40_000_000
    assert MEGATRON_LM.bucket_elements(64) == 64_000_000
    assert DEEPSPEED.bucket_elements(64) == ParallelismSection().gradient_bucket_elements == 500_000_000
    with pytest.raises(ValueError, match="PyTorch FSDP2 sets no size"):
        FSDP2.bucket_elements()


def test_a_short_form_runs_as_gpt_neox() -> None:
    full = expand(short_form())
    assert GPT_NEOX.section("training").items() <= full["training"].items()
    assert GPT_NEOX.section("parallelism").items() <= full["parallelism"].items()
