"""Published system of a row's GPU and network, with the differences of its cluster."""

from __future__ import annotations

import re
from typing import Any

from predictor.evidence.published.row import Row, UnexpressedError

# The published system by a word of the column « system », then of the column « gpu »; the first that fits.
BY_CLUSTER = {"Perlmutter": "Perlmutter", "Vista": "Vista", "vTrain": "A100_SXM"}
BY_GPU = {
    "H100-96GB-HBM2e-500W": "H100_HBM2e",
    "A100-40GB": "A100_40",
    "GB300": "GB300",
    "GB200": "GB200",
    "B300": "B300",
    "B200": "B200",
    "GH200": "Vista",
    "H200": "H200",
    "H100": "H100",
    "A100": "A100_SXM",
    "MI300X": "MI300X",
    "MI355X": "MI355X",
    "H800": "H800",
    "H20": "H20",
    "A800": "A800",
    "RTX 4090": "RTX_4090",
    "RTX 6000 Ada": "RTX_6000_Ada",
}
# W of boards that a row only calls "power limited": pytorch/ao, pull requests 2777 and 3566 (B200s at 750 of 1,000 W).
LIMITED_POWER_W = {"B200": 750.0}
# GB/s of a GPU's share of the network, per direction, that the sheets of these systems state.
NETWORK = {"A100_SXM": 25.0, "A100_40": 25.0, "H100": 50.0, "H100_HBM2e": 50.0, "H200": 50.0, "B200": 50.0}
LINKS = re.compile(r"(?:(\d+) ?x ?)?(\d+) Gb/s[^|,]*?per (node|gpu)", re.IGNORECASE)
PRINTED = re.compile(r"^(\d+) Gb/s \(as printed\)")
OMNI_PATH = re.compile(r"(\d+)x Omni-Path per node")
OMNI_PATH_GBIT_PER_S = 100  # Intel Omni-Path Architecture 100 series


def _network_gb_per_s(row: Row) -> float | None:
    """Return a GPU's share of the network between nodes, GB/s; None where the row does not say it."""
    text, gpus = row.text("interconnect"), row.whole("gpus_per_node")
    path, printed, links = OMNI_PATH.search(text), PRINTED.match(text), LINKS.search(text)
    if path is not None:
        return int(path[1]) * OMNI_PATH_GBIT_PER_S / 8 / gpus
    if printed is not None:  # fms-fsdp prints the network of a node
        return int(printed[1]) / 8 / gpus
    if links is None:
        return None
    gbit = int(links[1] or 1) * int(links[2])
    return gbit / 8 / (gpus if links[3].lower() == "node" else 1)


def system_of(row: Row) -> str:
    """Return the published system that predicts a row.

    Raises:
        UnexpressedError: no system has its GPU.
    """
    for word, name in BY_CLUSTER.items():
        if word in row.text("system"):
            return name
    for word, name in BY_GPU.items():
        if word in row.text("gpu"):
            return name
    raise UnexpressedError(f"no published system has its GPU ({row.text('gpu') or 'not stated'})")


def machine(row: Row) -> dict[str, Any]:
    """Return the sections system and cluster.

    Raises:
        UnexpressedError: no system has its GPU.
    """
    system = system_of(row)
    cluster: dict[str, Any] = {}
    if row.has("system", "power limited") and system in LIMITED_POWER_W:
        cluster["power_limit_w"] = LIMITED_POWER_W[system]
    network = _network_gb_per_s(row)
    if network is not None and system in NETWORK and network != NETWORK[system]:
        cluster["inter_node_gb_per_s"] = network
    if row.whole("gpus_per_domain", 0) > row.whole("gpus_per_node"):
        cluster["gpus_per_domain"] = row.whole("gpus_per_domain")
    return {"system": system, "cluster": cluster} if cluster else {"system": system}
