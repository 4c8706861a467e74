"""Prices of GPU-hours: a YAML of one's own, or a catalogue in SkyPilot's format."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from predictor.core.base.bundled import systems
from predictor.core.base.errors import ConfigError, nearest, same_name
from predictor.core.base.read_yaml import first_problem, read_keys

# Columns of catalogues of schema v5 to v7: prices are of an instance and an hour.
# Source: skypilot-org/skypilot-catalog, README.md, "vms.csv".
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
# Published systems by the catalogue's names of GPUs that differ from their own, in capitals; None: of no system. A100
# has 40 GB there and V100 16 GB; GH200 is rented as single superchips. Source: skypilot-org/skypilot-catalog,
# catalogs/v7/common/metadata.csv, catalogs/v8/common/accelerators.csv and vms.csv of lambda.
ACCELERATORS = {
    "A100": "A100_40",
    "A100-80GB": "A100_SXM",
    "A100-80GB-SXM": "A100_SXM",
    "GH200": "Vista",
    "H100-MEGA": "H100",
    "H100-NVLINK": "H100",
    "H100-SXM": "H100",
    "H200-SXM": "H200",
    "RTXPRO6000S": "RTX_PRO_6000",
    "V100": None,
    "V100-32GB": "V100",
}


class Price(BaseModel):
    """Price of one system; in any currency, the same for all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    price_per_gpu_hour: float | None = Field(default=None, strict=True, ge=0, le=1e6, description="on demand")
    spot_price_per_gpu_hour: float | None = Field(
        default=None, strict=True, ge=0, le=1e6, description="of instances that may be taken away"
    )
    interruptions_per_node_day: float | None = Field(
        default=None, strict=True, gt=0, le=1440, description="how often a spot instance is taken away"
    )

    def over(self, below: Price | None) -> Price:
        """Return this price with what another says where it says nothing."""
        if below is None:
            return self
        given = {name: value for name in Price.model_fields if (value := getattr(self, name)) is not None}
        return below.model_copy(update=given)


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices by system.

    Attributes:
        prices: of every system that the list has.
        notes: on where they come from, a sentence each.
    """

    prices: Mapping[str, Price]
    notes: tuple[str, ...] = ()


NO_PRICES = PriceList({})


def as_price(value: object) -> Any:
    """Return a price that is written as one number as the mapping that it stands for."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"price_per_gpu_hour": float(value)} if is_number else value  # type: ignore[arg-type]


def _own(path: Path) -> PriceList:
    """Return the prices of a YAML of one's own: a number, or a mapping, per system."""
    prices = {}
    for name, value in read_keys(path, ConfigError).items():
        given = as_price(value)
        if not isinstance(given, dict):
            raise ConfigError(f"{path}: {name} is {value!r}; expected a price, or {', '.join(Price.model_fields)}")
        whole = {key: float(each) if type(each) is int else each for key, each in given.items()}
        try:
            prices[name] = Price.model_validate(whole)
        except ValidationError as error:
            hint = next((nearest(str(key), Price.model_fields) for key in whole if key not in Price.model_fields), "")
            raise ConfigError(f"{path}: {name}: {first_problem(error)}.{hint}") from None
    return PriceList(prices)


def system_of(accelerator: str) -> str | None:
    """Return the published system of a GPU by the catalogue's name; None where there is none.

    >>> system_of("A100-80GB"), system_of("H200"), system_of("V100"), system_of("RTX4090"), system_of("T4")
    ('A100_SXM', 'H200', None, 'RTX_4090', None)
    """
    spelled = accelerator.upper()
    return ACCELERATORS[spelled] if spelled in ACCELERATORS else same_name(accelerator, systems())


def _amount(cells: Mapping[str, str | None], column: str) -> float | None:
    """Return a number of a catalogue; None where the cell is empty.

    Raises:
        ConfigError: it is none.
    """
    text = (cells.get(column) or "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigError(f"{column} is {text!r}; expected a number") from None


def _cheapest(rows: Iterable[dict[str, str | None]], column: str, count: int) -> tuple[float, str] | None:
    """Return the least price per GPU-hour of instances with so many GPUs, and their type and region."""
    found = []
    for row in rows:
        price = _amount(row, column)
        if price is not None and price > 0 and _amount(row, "AcceleratorCount") == count:
            found.append((price / count, f"{row['InstanceType']} in {row['Region']}"))
    return min(found, default=None)


def _catalogue(path: Path, gpus_per_node: Mapping[str, int], region: str | None) -> PriceList:
    """Return the prices of a catalogue: of every system the cheapest instance that is a whole node of it."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise ConfigError(f"{path} has no column {missing[0]}; a catalogue of SkyPilot has {', '.join(COLUMNS)}")
        rows: dict[str, list[dict[str, str | None]]] = defaultdict(list)
        regions = set()
        for row in reader:
            system = system_of(row["AcceleratorName"] or "")
            regions.add(row["Region"] or "")
            if system is not None and region in (None, row["Region"]):
                rows[system].append(row)
    if region is not None and region not in regions:
        raise ConfigError(
            f"{path} has no region {region}.{nearest(region, regions)} It has {', '.join(sorted(regions))}"
        )
    prices, notes = {}, []
    for system, instances in rows.items():
        count = gpus_per_node.get(system)
        if count is None:
            continue
        try:
            price, spot = (_cheapest(instances, column, count) for column in ("Price", "SpotPrice"))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        if price is None and spot is None:
            have = sorted({str(row["AcceleratorCount"]) for row in instances})
            notes.append(f"{path.name} has no instance of {count} GPUs of {system}, only of {', '.join(have)}.")
            continue
        prices[system] = Price(
            price_per_gpu_hour=None if price is None else price[0],
            spot_price_per_gpu_hour=None if spot is None else spot[0],
        )
        said = [f"{each[1]}{what}" for each, what in ((price, ""), (spot, ", spot")) if each is not None]
        notes.append(f"{system} is priced as {' and '.join(dict.fromkeys(said))} ({path.name}).")
    return PriceList(prices, tuple(notes))


def read_prices(path: Path, gpus_per_node: Mapping[str, int], region: str | None = None) -> PriceList:
    """Read a price list.

    Args:
        path: of a YAML file of one's own, or of a catalogue (``.csv``).
        gpus_per_node: of the systems that the plan may use: an instance is a whole node.
        region: of a catalogue, the only one; None: the cheapest.

    Raises:
        ConfigError: it does not parse.
    """
    if not path.is_file():
        raise ConfigError(f"prices is {path}, which does not exist; expected a YAML file or a catalogue (.csv)")
    if path.suffix == ".csv":
        return _catalogue(path, gpus_per_node, region)
    if region is not None:
        raise ConfigError(f"region is {region}; {path} has no regions, only catalogues (.csv) have")
    return _own(path)
