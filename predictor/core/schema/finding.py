"""Find the published system that a configuration names: by name, by folder, or by a file of one's own."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from typing import Any

from predictor.core.base.bundled import DATA_FOLDER, REGRESSORS_FOLDER, is_system, systems
from predictor.core.base.errors import ConfigError, nearest, same_name
from predictor.core.base.read_yaml import read_mapping
from predictor.core.costs.folder import COLLECTIVE_FOLDER, MANIFEST, OPERATOR_FOLDER
from predictor.core.schema.own_system import OwnSystem, is_system_file, read_own

# Systems that a GPU's name alone stands for, and how each system of that GPU differs from the others.
USUAL = {"A100": "A100_SXM", "GH200": "Vista"}
OTHERS = {"A100_SXM": ("Perlmutter", "Selene"), "Vista": ("GH200_QUAD",)}
DIFFERS = {
    "A100_SXM": "what A100 alone means: products and attention of 2025's software, network of the data sheet",
    "A100_40": "A100_SXM with 40 GB",
    "Perlmutter": "one cluster: every operator measured, 4 GPUs a node, a network at a tenth of its data sheet",
    "Selene": "Perlmutter's operators in nodes of 8, network of the data sheet",
    "Vista": "what GH200 alone means: one cluster, every operator measured, one GPU a node",
    "GH200_QUAD": "Vista's operators, four GPUs a node",
}
OF_ALONE = re.compile("(?:nvidia)?(?:dgx)?(a100|gh200)(?:sxm4?)?(?:80gb|96gb|120gb)?")


def _gpus_by_system() -> dict[str, str]:
    """Return the GPU of every published system."""
    files = {name: read_mapping(REGRESSORS_FOLDER / name / "system.yaml").get("gpu") for name in systems()}
    return {name: str(gpu.get("name")) if isinstance(gpu, dict) else "?" for name, gpu in files.items()}


def published() -> str:
    """Return the names of the published systems, for a message."""
    return ", ".join(systems()) or "none"


def others_with(gpu: str, name: str) -> list[str]:
    """Return the published systems of a GPU but for one."""
    return [other for other, its_gpu in _gpus_by_system().items() if its_gpu == gpu and other != name]


def published_with_gpus() -> str:
    """Return every published system with its GPU's name, for a message."""
    return ", ".join(f"{name} ({gpu})" for name, gpu in _gpus_by_system().items()) or "none"


def _names_gpu(name: str, gpu: str) -> bool:
    """Return whether a word of a name is a GPU's model: H100 of DGX-H100, A100 of A100-80GB, but no A10 of an A100."""
    words = re.findall("[a-z]+[0-9]+[a-z]*", name.lower())
    return any(re.search(f"{word}([1-9][0-9]{{1,2}}gb|[^0-9]|$)", gpu.lower()) for word in words)


def _meant(name: str) -> str:
    """Return the systems whose GPU a name may stand for, or the system that is spelled alike, as a sentence."""
    having = {other: gpu.lower() for other, gpu in _gpus_by_system().items() if _names_gpu(name, gpu)}
    board = re.findall(r"\d+gb|pcie|sxm|nvl", name.lower())  # its memory and its form
    having = {other: gpu for other, gpu in having.items() if all(part in gpu for part in board)} or having
    names = list(having)
    if len(names) > 1:
        return f" That is the GPU of {', '.join(names[:-1])} and {names[-1]}: name one of them."
    return f" Did you mean {names[0]}?" if names else nearest(name, systems())


def usual(name: str) -> str | None:
    """Return the system that the name of a GPU stands for where several have it; None of any other name.

    >>> usual("A100"), usual("a100-80GB"), usual("DGX A100"), usual("A100-40GB"), usual("H100")
    ('A100_SXM', 'A100_SXM', 'A100_SXM', None, None)
    """
    found = OF_ALONE.fullmatch(re.sub(r"[\s_-]", "", name.lower()))
    return None if found is None else USUAL[found[1].upper()]


def usual_notes(name: object) -> tuple[str, ...]:
    """Return which system a GPU's name stands for and how the others differ; nothing of a system's own name."""
    stands_for = usual(name) if isinstance(name, str) else None
    if stands_for is None or same_name(str(name), systems()) is not None:
        return ()
    differ = ", ".join(f"{other} ({DIFFERS[other]})" for other in OTHERS[stands_for])
    return (f"{name} is read as {stands_for}; with the same GPU: {differ}. --system names one.",)


def find_folder(name: str, base: Path) -> Path:
    """Find a folder: a published system by name, else as given from ``base``, else from the bundled data.

    The case of a system's name does not count, nor do its hyphens and underscores.

    Raises:
        ConfigError: there is none; the message lists the published systems.
    """
    if not name.strip():
        raise ConfigError(f"system is {name!r}; expected one of: {published()}")
    candidates = [base / name, DATA_FOLDER / name, REGRESSORS_FOLDER / name]
    if is_system(name):
        candidates.reverse()
    for candidate in candidates:
        if candidate.is_dir():
            return candidate.resolve()
    spelled = same_name(name, systems()) or usual(name)
    if spelled is not None:
        return (REGRESSORS_FOLDER / spelled).resolve()
    raise ConfigError(
        f"{name} is not a published system.{_meant(name)} Published: {published()}; of another GPU "
        f"or cluster, write a file with like: and what differs (docs/configuration.md)"
    )


def folder_of(key: str, value: object, kind: str, base: Path) -> Path:
    """Return the published system of an operator or nccl folder.

    Raises:
        ConfigError: there is no such folder, or it belongs to no published system.
    """
    if not isinstance(value, str | PathLike) or not str(value).strip():
        raise ConfigError(f"{key} is {value!r}; expected a folder such as ./regressors/Perlmutter/{kind}")
    path = Path(value)
    if path.name == kind and is_system(path.parent.name):  # a system known from a data sheet has no such folder
        system = find_folder(str(path.parent), base)
        if (system / MANIFEST).is_file():
            return system
    folder = find_folder(str(value), base)
    if folder.name != kind or not (folder.parent / MANIFEST).is_file():
        raise ConfigError(f"{key} is {value}; expected the {kind} folder of a published system: {published()}")
    return folder.parent


def short_form_system(content: dict[str, Any], base: Path) -> Path:
    """Return the published system of a short form's two folders.

    Raises:
        ConfigError: a folder belongs to no published system, or they belong to two.
    """
    operators = folder_of("operator_data_folder", content["operator_data_folder"], OPERATOR_FOLDER, base)
    collectives = folder_of("nccl_data_folder", content["nccl_data_folder"], COLLECTIVE_FOLDER, base)
    if operators != collectives:
        raise ConfigError(
            f"operator_data_folder is of {operators.name} and nccl_data_folder of {collectives.name}; "
            "a run is on one system"
        )
    return operators


def find_system(name: str, base: Path) -> tuple[OwnSystem | None, Path]:
    """Return the folder of a system; of a file of one's own, what it says and the folder of what it is like."""
    if not is_system_file(name, base):
        return None, find_folder(name, base)
    path = base / name
    own = read_own(path)
    return own, find_folder(own.like, path.parent)
