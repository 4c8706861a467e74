"""Converters by rows, and the groups in which reports summarize rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from predictor.evidence.published import (
    bridge_cards,
    expressed,
    functional_tests,
    gpt_neox,
    internevo,
    llm_foundry,
    megatron_deepspeed,
    megatron_lm,
    nemo,
    torch_fsdp,
)
from predictor.evidence.published.row import Row, UnexpressedError
from predictor.evidence.verification.measured import PeakCounts

Convert = Callable[[Row], dict[str, Any]]
LARGEST_NODE = 8


class Converter(NamedTuple):
    """Rows whose group begins with a word.

    Attributes:
        prefix: of the column « group ».
        convert: returns a row's configuration.
        groups: returns the groups of reports that a row belongs to, the one that tells it from others first.
        peak: what a row's measured memory counts.
        ordinary: training runs of users or of test suites; benchmarks otherwise.
    """

    prefix: str
    convert: Convert
    groups: Callable[[Row], tuple[str, ...]]
    peak: PeakCounts = "total"
    ordinary: bool = False


def _precision_group(row: Row, name: str) -> str:
    low = nemo.recipe(row)
    if low is None:
        return f"{name}, bf16"
    return f"{name}, {'fp8' if low.startswith('fp8') else low}"


def _kind(row: Row) -> str:
    if row.has("task", "lora"):
        return "LoRA"
    return "experts" if row.text("moe_experts") else "dense"


def _dgxc(row: Row) -> tuple[str, ...]:
    return (_precision_group(row, "dgxc H100"),)


def _recent(row: Row) -> tuple[str, ...]:
    return (_precision_group(row, f"Megatron-Bridge and dgxc, {_kind(row)}"),)


# Families of users_step_times.csv as reports name them; a family without a name keeps its own.
FAMILIES = {
    "dle_bert": "DeepLearningExamples, BERT",
    "fms_acceleration": "HF Trainer (fms-acceleration)",
    "gist_deepspeed": "DeepSpeed, HF model",
    "nemo_2405": "NeMo 24.05",
    "nemo_2407": "NeMo 24.07",
    "nemo_2409": "NeMo 24.09",
    "nemo_2502_B200": "NeMo 25.02, B200",
    "nemo_2504_GB200": "NeMo 25.04, GB200",
    "nemo_longseq": "NeMo, long sequences",
}
USERS, VENDORS = "Users' own runs", "Vendors' tables"


def _of_family(kind: str) -> Callable[[Row], tuple[str, ...]]:
    """Return the groups of a row whose table names family and kind ("dense bf16"), and of all runs of its source."""

    def groups(row: Row) -> tuple[str, ...]:
        family = FAMILIES.get(row.text("family"), row.text("family"))
        return ", ".join((family, *row.text("kind").split())), kind

    return groups


def _card(row: Row) -> tuple[str, ...]:
    return *bridge_cards.groups(row), USERS


def _neox(row: Row) -> tuple[str, ...]:
    return (f"GPT-NeoX jobs, {row.text('system').split()[-1]}",)


def _vtrain(row: Row) -> tuple[str, ...]:
    if row.whole("n_gpus") > LARGEST_NODE:
        return ("vTrain, several nodes",)
    return ("vTrain, one node", *(["vTrain, one node, tp 8"] if row.whole("tp", 1) == LARGEST_NODE else []))


def _bloom(row: Row) -> tuple[str, ...]:
    return ("BLOOM, preparatory runs", *(["BLOOM, tp 8"] if row.whole("tp", 1) == LARGEST_NODE else []))


def _foundry(row: Row) -> tuple[str, ...]:
    if row.has("gpu", "A100"):
        return "llm-foundry, A100", f"llm-foundry, {'A100-40' if row.has('gpu', 'A100-40') else 'A100-80'}"
    return (f"llm-foundry, H100{', fp8' if row.has('precision', 'fp8') else ''}",)


def _named(name: str) -> Callable[[Row], tuple[str, ...]]:
    return lambda row: (name,)


CONVERTERS = (
    Converter("gpumodeling", gpt_neox.configuration, _neox),
    Converter("vtrain", megatron_deepspeed.vtrain, _vtrain),
    Converter("megatron_sc21", megatron_lm.narayanan, _named("Narayanan 2021")),
    Converter("korthikanti", megatron_lm.korthikanti, _named("Korthikanti 2022")),
    Converter("mt_nlg", megatron_lm.mt_nlg, _named("MT-NLG 530B")),
    Converter("mtnlg", megatron_lm.mt_nlg, _named("MT-NLG 530B")),
    Converter("megatron_turing", megatron_lm.mt_nlg, _named("MT-NLG 530B")),
    Converter("bloom", megatron_deepspeed.bloom, _bloom, ordinary=True),
    Converter("internevo", internevo.configuration, _named("InternEvo")),
    Converter("llmfoundry", llm_foundry.configuration, _foundry),
    Converter("fms", torch_fsdp.fms_fsdp, _named("fms-fsdp")),
    Converter("torchtitan", torch_fsdp.torchtitan, _named("torchtitan")),
    # torchtitan logs max_reserved_gib as its memory: torchtitan/components/metrics.py.
    Converter("torchao", torch_fsdp.torchtitan, _named("torchao"), "reserved"),
    Converter("dgxc_", nemo.megatron_core, _recent),
    Converter("dgxc", nemo.megatron_core, _dgxc),
    Converter("mbridge", nemo.megatron_core, _recent),
    Converter("mcore_llama", nemo.megatron_core, _recent),
    Converter("mcore_ci", nemo.functional_test, _named("Megatron-LM CI"), ordinary=True),
    # The column is mem-max-allocated-bytes of the golden values.
    Converter("mcore_golden", functional_tests.configuration, functional_tests.groups, "allocated", ordinary=True),
    Converter("gcp", nemo.megatron_core, _named("GCP recipes, H200")),
    Converter("mlperf", nemo.megatron_core, lambda row: (f"MLPerf, {_kind(row)}",)),
    # The column is « real alloc GiB » of its docs/b200/b200_release_v1.2_summary.md.
    Converter("simumax", nemo.simumax, lambda row: (f"SimuMax B200, {_kind(row)}",), "allocated"),
    Converter("fresh_mbridge_cards", bridge_cards.configuration, _card, ordinary=True),
    Converter("fresh_nemo", expressed.configuration, _of_family(VENDORS)),
    Converter("fresh_dle", expressed.configuration, _of_family(VENDORS)),
    Converter("fresh", expressed.configuration, _of_family(USERS), ordinary=True),
    Converter("vocabpar", nemo.vocabulary_parallel, _named("Vocabulary-parallel fork, A100")),
)


# Of groups without a file of their own, by a word of the column « framework ».
BY_FRAMEWORK: dict[str, Convert] = {
    "gpt-neox": gpt_neox.configuration,
    "torchtitan": torch_fsdp.torchtitan,
    "llm-foundry": llm_foundry.configuration,
    "fms-fsdp": torch_fsdp.fms_fsdp,
    "internevo": internevo.configuration,
    "megatron-bridge": nemo.megatron_core,
    "nemo": nemo.megatron_core,
    "megatron-deepspeed": megatron_lm.mt_nlg,
    "megatron": nemo.megatron_core,
}


def converter_of(row: Row) -> Converter:
    """Return the converter of a row: of its group, else of the software that it names.

    Raises:
        UnexpressedError: no file converts its group, and none its software.
    """
    group = row.text("group")
    for converter in CONVERTERS:
        if group.lower().replace("-", "_").startswith(converter.prefix):
            return converter
    for word, convert in BY_FRAMEWORK.items():
        if row.has("framework", word):
            return Converter(group, convert, _named(group))
    raise UnexpressedError(f"no file converts {row.text('framework') or 'an unnamed framework'}")
