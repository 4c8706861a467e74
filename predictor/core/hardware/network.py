"""The network of a node as people write it: "200 Gb/s per node", "4x100Gb", "NDR400 per GPU"."""

from __future__ import annotations

import re
from typing import NamedTuple

from predictor.core.base.errors import ConfigError

# Gb/s of a port with four lanes, InfiniBand Trade Association's roadmap; Slingshot: HPE's Cassini network card.
PORTS = {
    "qdr": 40.0,
    "fdr": 56.0,
    "edr": 100.0,
    "hdr": 200.0,
    "ndr": 400.0,
    "xdr": 800.0,
    "slingshot10": 100.0,
    "slingshot11": 200.0,
    "slingshot": 200.0,
}
# Gb/s of one unit; a small b is a bit, a large one a byte.
UNITS = {"Gb": 1.0, "Gbit": 1.0, "G": 1.0, "Tb": 1000.0, "Tbit": 1000.0, "T": 1000.0, "Mb": 0.001, "Mbit": 0.001}
BYTES = {"GB": 8.0, "MB": 0.008, "TB": 8000.0}
BITS_PER_BYTE = 8
_TEXT = re.compile(
    r"^\s*(?:(?P<count>\d+)\s*[x×*]\s*)?(?:(?P<port>(?i:slingshot-?1[01]|slingshot|[qfehnx]dr))[ -]?)?"
    r"(?P<rate>\d+(?:\.\d+)?)?"
    r"\s*(?P<unit>[GMT](?:bit|b|B|bE|BE|bps|Bps)?(?:/s|ps)?E?)?(?:\s*(?:IB|InfiniBand|Ethernet|ethernet|RoCE))?"
    r"\s*(?:(?:per|/|a|each)\s*(?P<scope>node|gpu|GPU|host|server))?\s*$"
)
WAY_OUT = 'write for instance "200 Gb/s per node", "4x100Gb" (ports of a node), "NDR400 per GPU" or "25 GB/s per GPU"'


class Network(NamedTuple):
    """A GPU's share of its node's network, in GB/s a direction, and the sentence that says how it follows."""

    gb_per_s: float
    sentence: str


def network_share(text: str, gpus_per_node: int) -> Network:
    """Return a GPU's share of a network, as its ports' line rate over the GPUs that share them.

    Raises:
        ConfigError: the text has no rate with a unit, or does not say whose rate it is.

    >>> network_share("4x100Gb", 8).gb_per_s
    6.25
    """
    found = _TEXT.match(text)
    gbit = None if found is None else _gbit(found)
    if found is None or gbit is None:
        raise ConfigError(f"network is {text!r}; expected a rate with its unit: {WAY_OUT}")
    count, scope = found["count"], (found["scope"] or "").lower()
    if count is None and not scope:
        raise ConfigError(f"network is {text!r}; is that a node's or a GPU's? Write {text} per node, or {text} per GPU")
    total = gbit * int(count or 1)
    share = total / BITS_PER_BYTE / (1 if scope == "gpu" else gpus_per_node)
    whose = "of each GPU" if scope == "gpu" else f"of a node, which {gpus_per_node} GPUs share"
    return Network(share, f"The network {text} is {total:g} Gb/s {whose}: {share:g} GB/s per GPU and direction.")


def _gbit(found: re.Match[str]) -> float | None:
    """Return the rate of one port in Gb/s; None without one, or without its unit."""
    port = PORTS.get((found["port"] or "").lower().replace("-", ""))
    if found["rate"] is None:
        return port
    unit = found["unit"]
    if unit is None:
        return float(found["rate"]) if port is not None else None  # NDR400, HDR100
    plain = re.sub(r"(?:/s|ps|E)$", "", unit)
    factor = BYTES.get(plain) or UNITS.get(plain)
    return None if factor is None else float(found["rate"]) * factor
