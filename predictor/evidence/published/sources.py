"""The publication of a row: what is left out as a whole where predictions are judged on sources never seen."""

from __future__ import annotations

import re

from predictor.evidence.published.row import Row

REPOSITORY = re.compile(r"github:([\w.-]+/[\w.-]+)(?:@\w+)?(?: \([^)]*\))?:?(.*)")
ADDRESS = re.compile(r"https?://([\w./-]+)")
# Of repositories with several publications: the beginning of a document's path, and the publication's name.
OF_DOCUMENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "NVIDIA/Megatron-LM": (
        ("tests/functional_tests", "NVIDIA/Megatron-LM, functional tests"),
        ("images/", "Narayanan et al. 2021"),
    ),
    "NVIDIA-NeMo/Megatron-Bridge": (("examples/model_verification_cards", "Megatron-Bridge, verification cards"),),
    "NVIDIA/NeMo": (("docs/source/performance/performance_long", "NeMo, performance of long sequences"),),
}
# One table that each release of NeMo prints anew, by where its releases keep it.
PERFORMANCE_SUMMARY = "NeMo, performance summary"
OF_ADDRESS = {"docs.nvidia.com/nemo-framework": PERFORMANCE_SUMMARY}
OF_REPOSITORY = {"NVIDIA/NeMo": PERFORMANCE_SUMMARY, "NVIDIA/NeMo-Framework-Launcher": PERFORMANCE_SUMMARY}


def publication(row: Row) -> str:
    """Return the publication of a row; of one whose source is not stated, its group.

    >>> publication(Row({"source": "github:NVIDIA/Megatron-LM@d98e8a6:tests/functional_tests/a/b.json"}))
    'NVIDIA/Megatron-LM, functional tests'
    """
    text = row.text("source")
    if (found := REPOSITORY.match(text)) is not None:
        repository, path = found.groups()
        parts = OF_DOCUMENTS.get(repository, ())
        named = (name for beginning, name in parts if path.startswith(beginning))
        return next(named, OF_REPOSITORY.get(repository, repository))
    if (address := ADDRESS.match(text)) is not None:
        named = (name for beginning, name in OF_ADDRESS.items() if address[1].startswith(beginning))
        return next(named, address[1])
    return text or row.text("group")
