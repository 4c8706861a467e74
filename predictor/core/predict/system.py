"""``load_system``: a published system that times single operators and collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from predictor.core.base.bundled import systems
from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.sizes import whole
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, Topology
from predictor.core.costs.cost import Cost
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import CARD, OPERATOR_FOLDER, PublishedSystem
from predictor.core.costs.variants import as_tabled
from predictor.core.hardware.hardware import System
from predictor.core.plan.loading import open_measured
from predictor.core.schema.finding import find_folder
from predictor.core.schema.short_names import OPERATORS_BY_SHORT_NAME

LARGEST_SIZE = 10**13
DIRECTIONS = {"forward": Direction.FORWARD, "backward": Direction.BACKWARD}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedSystem:
    """A published system, open in one precision.

    Attributes:
        published: its regressors and hardware.
        precision: of operators; measured, or with the rate of a measured precision.
    """

    published: PublishedSystem
    precision: str

    @property
    def name(self) -> str:
        """Return the system's name."""
        return self.published.name

    @property
    def gpu(self) -> str:
        """Return its GPU's name."""
        return self.published.gpu

    @property
    def folder(self) -> Path:
        """Return the published folder."""
        return self.published.folder

    @property
    def hardware(self) -> System:
        """Return peaks, links and host of ``system.yaml``, each number with its source."""
        return self.published.hardware

    @property
    def card(self) -> str:
        """Return the card: measurements, versions, dropped rows and held-out errors."""
        return (self.folder / CARD).read_text(encoding="utf-8")

    @property
    def operators(self) -> dict[str, tuple[str, ...]]:
        """Return the operators with a regressor, own or transferred, each with the dimensions of its shape in order."""
        known = self.published.regressor_names(OPERATOR_FOLDER)
        return {name: operator.dimensions for name, operator in catalogue().items() if operator.regressor_name in known}

    def cost(self, operator: str, shape: Mapping[str, int] | Sequence[int], direction: str = "forward") -> Cost:
        """Return the time of one call in microseconds, with its 90 % interval and its source.

        Args:
            operator: a name of ``operators``, or its short name (linear1, flash_atten …).
            shape: its dimensions by name, or in the order that ``operators`` says.
            direction: "forward" or "backward".

        Raises:
            ConfigError: no such operator or direction, or not a shape of it; a ValueError.
            PublishedError: the system has no regressor of it; a ValueError.
        """
        inside = OPERATORS_BY_SHORT_NAME.get(operator, operator)
        known = catalogue()
        if inside not in known:
            raise ConfigError(f"operator is {operator!r};{nearest(str(operator), known)} expected {', '.join(known)}")
        if direction not in DIRECTIONS:
            raise ConfigError(f"direction is {direction!r}; expected {' or '.join(DIRECTIONS)}")
        return self.published.cost(known[inside], DIRECTIONS[direction], _shape(known[inside], shape))

    def collective(self, name: str, size_bytes: int, *, nodes: int, gpus_per_node: int) -> Cost:
        """Return the time of one collective in microseconds, with its 90 % interval and its source.

        Args:
            name: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all or point_to_point.
            size_bytes: of one rank's message; of one rank's shard for all_gather and reduce_scatter.
            nodes: that the group spans.
            gpus_per_node: its ranks on each node. A group of one rank takes no time.

        Raises:
            ConfigError: no such collective, or a size that is no positive whole number; a ValueError.
            PublishedError: the system has no regressor of it; a ValueError.
        """
        if name not in COLLECTIVES:
            raise ConfigError(
                f"collective is {name!r};{nearest(str(name), COLLECTIVES)} expected {', '.join(COLLECTIVES)}"
            )
        group = Topology(whole("nodes", nodes), whole("gpus_per_node", gpus_per_node))
        return self.published.collective(name, whole("size_bytes", size_bytes, largest=LARGEST_SIZE), group)

    def __str__(self) -> str:
        """Return name, GPU, precision and card in a line."""
        return f"{self.name}, {self.gpu}, {self.precision}; card: {self.folder / CARD}"

    def __repr__(self) -> str:
        """Return the call that opens it."""
        return f"load_system({self.name!r}, precision={self.precision!r})"


def _shape(operator: Operator, shape: Mapping[str, int] | Sequence[int]) -> Shape:
    """Return a shape in the operator's order, checked."""
    expected = f"{operator.name} takes {', '.join(operator.dimensions)}"
    if isinstance(shape, Mapping):
        if set(shape) != set(operator.dimensions):
            raise ConfigError(f"shape has {', '.join(map(str, shape)) or 'nothing'}; {expected}")
        sizes = [shape[name] for name in operator.dimensions]
    else:
        sizes = list(shape)
    if len(sizes) != len(operator.dimensions):
        raise ConfigError(f"shape has {len(sizes)} values; {expected}")
    return tuple(whole(name, size, largest=LARGEST_SIZE) for name, size in zip(operator.dimensions, sizes, strict=True))


def system_name(system: str | PathLike[str] | LoadedSystem) -> str:
    """Return the system's name in a configuration, or the absolute path of its folder."""
    if isinstance(system, LoadedSystem):
        return str(system.folder)
    if not isinstance(system, str | PathLike):
        raise ConfigError(f"system is {system!r}; expected a name, a folder or what load_system returns")
    name = fspath(system)
    if not name.strip():
        raise ConfigError(f"system is {name!r}; expected a name, as list-systems shows them, or a folder")
    return str(Path(name).resolve()) if name not in systems() and Path(name).exists() else name


def load_system(name_or_folder: str | PathLike[str], *, precision: str = "bf16") -> LoadedSystem:
    """Open a published system.

    Args:
        name_or_folder: a name that ``list-systems`` shows, or a published folder.
        precision: of operators: fp16, bf16, fp32, or fp8, which only single operators have.

    Raises:
        ConfigError: not a published system, or the precision was not measured on it; a ValueError.
        PublishedError: a file of it is damaged; a ValueError.
    """
    folder = find_folder(system_name(name_or_folder), Path.cwd())
    return LoadedSystem(as_tabled(open_measured(folder, precision)), precision)
