"""A network as people write it is a GPU's share of it in GB/s."""

from __future__ import annotations

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.hardware.network import network_share


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("200 Gb/s per node", 6.25),
        ("200Gbps per node", 6.25),
        ("4x100Gb", 12.5),
        ("4 x HDR", 25.0),
        ("8x NDR400", 100.0),
        ("8x400GbE", 100.0),
        ("NDR400 per GPU", 50.0),
        ("NDR per GPU", 50.0),
        ("HDR100 per node", 3.125),
        ("25 GB/s per GPU", 25.0),
        ("100GB/s per node", 25.0),
        ("0.4 Tb/s per GPU", 50.0),
        ("Slingshot-11 per GPU", 25.0),
        ("4 x 200 Gbit/s InfiniBand", 25.0),
        ("400G/GPU", 50.0),
    ],
)
def test_share_of_a_gpu(text: str, share: float) -> None:
    network = network_share(text, 4)
    assert network.gb_per_s == pytest.approx(share)
    assert text in network.sentence
    assert f"{share:g} GB/s per GPU" in network.sentence


@pytest.mark.parametrize("text", ["", "fast", "200", "4x100", "200 Gb/s per rack", "FOO400 per GPU", "200 km per node"])
def test_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a rate with its unit: write for instance"):
        network_share(text, 4)


@pytest.mark.parametrize("text", ["200 Gb/s", "NDR400", "HDR"])
def test_a_rate_of_nobody_is_asked_about(text: str) -> None:
    with pytest.raises(ConfigError, match=f"Write {text} per node, or {text} per GPU"):
        network_share(text, 4)
