"""Prices of one's own and of a catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.bundled import systems
from predictor.core.base.errors import ConfigError
from predictor.training_plan.prices import ACCELERATORS, Price, read_prices

NODES = {"H100": 8, "A100_SXM": 8, "A100_40": 8, "V100": 8, "MI300X": 8}
# Rows as catalogs/v7 of skypilot-org/skypilot-catalog has them, made up.
CATALOGUE = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu,,,4.0,16.0,0.2,west,,
one,H100,1.0,16.0,200.0,1.0,west,"{'Gpus': [{'Name': 'H100'}]}",0.5
node,H100,8.0,128.0,1600.0,24.0,west,"{'Gpus': [{'Name': 'H100'}]}",9.6
node,H100-SXM,8,128,1600,20.0,east,,
old,A100,8,128,1600,8.0,east,,
new,A100-80GB,8,128,1600,16.0,east,,4.0
small,V100,8,128,1600,4.0,east,,
pair,MI300X,2,128,1600,4.0,east,,
"""


def catalogue(folder: Path, text: str = CATALOGUE) -> Path:
    path = folder / "vms.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_catalogue_prices_whole_nodes_where_they_are_cheapest(tmp_path: Path) -> None:
    found = read_prices(catalogue(tmp_path), NODES)
    assert found.prices == {
        "H100": Price(price_per_gpu_hour=2.5, spot_price_per_gpu_hour=1.2),
        "A100_40": Price(price_per_gpu_hour=1.0),
        "A100_SXM": Price(price_per_gpu_hour=2.0, spot_price_per_gpu_hour=0.5),
    }
    assert "H100 is priced as node in east and node in west, spot (vms.csv)." in found.notes
    assert "vms.csv has no instance of 8 GPUs of MI300X, only of 2." in found.notes
    west = read_prices(catalogue(tmp_path), NODES, "west")
    assert west.prices == {"H100": Price(price_per_gpu_hour=3.0, spot_price_per_gpu_hour=1.2)}


def test_every_name_of_the_catalogue_is_of_a_published_system() -> None:
    assert {name for name in ACCELERATORS.values() if name is not None} <= set(systems())


def test_a_list_of_ones_own_has_numbers_or_keys(tmp_path: Path) -> None:
    path = tmp_path / "prices.yml"
    path.write_text(
        "H100: 3\nB200: {price_per_gpu_hour: 4.5, spot_price_per_gpu_hour: 2, interruptions_per_node_day: 0.1}\n"
    )
    assert read_prices(path, NODES).prices == {
        "H100": Price(price_per_gpu_hour=3.0),
        "B200": Price(price_per_gpu_hour=4.5, spot_price_per_gpu_hour=2.0, interruptions_per_node_day=0.1),
    }


@pytest.mark.parametrize(
    ("name", "text", "region", "message"),
    [
        ("vms.csv", CATALOGUE.replace("SpotPrice", "Spot"), None, "has no column SpotPrice; a catalogue"),
        ("vms.csv", CATALOGUE.replace("24.0", "much"), None, "vms.csv: Price is 'much'; expected a number"),
        ("vms.csv", CATALOGUE, "wset", r"has no region wset. Did you mean west\?"),
        ("own.yml", "H100: 3", "west", "has no regions, only catalogues"),
        ("own.yml", "H100: cheap", None, "H100 is 'cheap'; expected a price, or price_per_gpu_hour"),
        ("own.yml", "H100: {spot: 1}", None, "spot is not a known key"),
        ("own.yml", "H100: {price_per_gpu_hour: -1}", None, "price_per_gpu_hour is -1.0"),
    ],
)
def test_a_list_that_cannot_be_read_says_why(
    name: str, text: str, region: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_prices(path, NODES, region)


def test_a_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which does not exist"):
        read_prices(tmp_path / "prices.yml", NODES)
