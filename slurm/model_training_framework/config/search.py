"""Experiments of several grids over one base configuration: built, checked, named, and told apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from model_training_framework.config.errors import ConfigurationError, ValidationError
from model_training_framework.config.experiment import ExperimentConfig
from model_training_framework.config.explain import shown
from model_training_framework.config.fields import file_values, safe_name
from model_training_framework.config.grid import NAMED_BY_THE_SEARCH, ParameterGrid
from model_training_framework.config.naming import NamingStrategy, canonical, names
from model_training_framework.config.nested import with_value
from model_training_framework.config.section import Section

MOST_EXPERIMENTS = 1_000_000  # more is taken for a slip: a job each


class Experiment(NamedTuple):
    """One experiment of a search.

    Attributes:
        config: its whole configuration.
        differs: dotted keys and values that its grid set.
        grid: the name of its grid.
    """

    config: ExperimentConfig
    differs: dict[str, Any]
    grid: str


class _Point(NamedTuple):
    """A combination of a grid, before it is a configuration."""

    grid: str
    parameters: dict[str, Any]

    def __str__(self) -> str:
        """Return grid, keys and values for a message."""
        said = ", ".join(f"{key}={shown(value)}" for key, value in self.parameters.items())
        return f"{said or 'the base configuration'} of grid {self.grid}"


class ParameterGridSearch:
    """Makes the experiments of several grids over one base configuration."""

    def __init__(self, base_config: Mapping[str, Any] | ExperimentConfig) -> None:
        """Start without grids.

        Args:
            base_config: what experiments have in common. It may lack what the grids set, and is never changed.

        Raises:
            ConfigurationError: it is no mapping.
        """
        if not isinstance(base_config, Mapping | ExperimentConfig):
            raise ConfigurationError(f"base_config is {shown(base_config)}; expected a mapping of sections")
        self.base_config: dict[str, Any] = (
            base_config.to_dict() if isinstance(base_config, ExperimentConfig) else file_values(base_config)
        )
        self.grids: list[ParameterGrid] = []
        self.naming_strategy = NamingStrategy.HASH_BASED

    def add_grid(self, grid: ParameterGrid) -> None:
        """Add a grid; its experiments follow those of the grids before it."""
        if not isinstance(grid, ParameterGrid):
            raise ConfigurationError(f"grid is {shown(grid)}; expected a ParameterGrid")
        self.grids.append(grid)

    def create_grid(self, name: str, description: str = "") -> ParameterGrid:
        """Add a grid without parameters and return it."""
        grid = ParameterGrid(name, description)
        self.add_grid(grid)
        return grid

    def set_naming_strategy(self, strategy: NamingStrategy | str) -> None:
        """Say how experiments are named.

        Raises:
            ConfigurationError: there is no such strategy.
        """
        try:
            self.naming_strategy = NamingStrategy(strategy)
        except ValueError:
            known = ", ".join(NamingStrategy)
            raise ConfigurationError(f"the naming strategy is {shown(strategy)}; expected {known}") from None

    def get_parameter_count(self) -> int:
        """Return the number of experiments of all grids."""
        return sum(grid.get_parameter_count() for grid in self.grids)

    def generate_experiments(self) -> Iterator[ExperimentConfig]:
        """Give every experiment, in a stable order; all are checked before the first is given.

        Raises:
            ValidationError: an experiment is not allowed; the message names the parameters that made it so.
            ConfigurationError: two experiments are the same, or there are too many.
        """
        return iter([experiment.config for experiment in self.experiments()])

    def experiments(self) -> list[Experiment]:
        """Return every experiment with what its grid set; order and errors as ``generate_experiments``."""
        total = self.get_parameter_count()
        if total > MOST_EXPERIMENTS:
            raise ConfigurationError(f"the grids make {total:,} experiments; more than {MOST_EXPERIMENTS:,} is a slip")
        points = [_Point(grid.name, parameters) for grid in self.grids for parameters in grid.generate_permutations()]
        own = self.base_config.get(NAMED_BY_THE_SEARCH)
        prefixes = [safe_name(str(own) if own else point.grid) for point in points]
        called = names(self.naming_strategy, prefixes, [point.parameters for point in points])
        built = self._built(points, called)
        _check_distinct(built, points)
        return [Experiment(config, point.parameters, point.grid) for config, point in zip(built, points, strict=True)]

    def _built(self, points: Sequence[_Point], called: Sequence[str]) -> list[ExperimentConfig]:
        """Return the configuration of every combination.

        A section is checked once for each combination of its own keys and then handed over: it is immutable, or copied
        where it holds lists or mappings, so that no two experiments share a part that can be changed.
        """
        checked: dict[tuple[str, str], Section] = {}
        touched = {key.partition(".")[0] for point in points for key in point.parameters}
        common = self.base_config
        to_copy: dict[str, Section] = {}
        built: list[ExperimentConfig] = []
        for point, name in zip(points, called, strict=True):
            content = {**common, NAMED_BY_THE_SEARCH: name}
            content |= {key: section.copied() for key, section in to_copy.items()}
            versions: dict[str, str] = {}
            for key, value in point.parameters.items():
                content = with_value(content, key, value)
                section = key.partition(".")[0]
                versions[section] = f"{versions.get(section, '')}{key}={value!r};"
            for version in versions.items():
                if version in checked:
                    content[version[0]] = checked[version].copied()
            try:
                config = ExperimentConfig.from_dict(content)
            except ValidationError as error:
                raise _in_grid(error, point) from None
            built.append(config)
            for version in versions.items():
                found = getattr(config, version[0])
                if isinstance(found, Section):
                    checked.setdefault(version, found)
            if len(built) == 1:
                fixed = {key: getattr(config, key) for key in config.key_names if key not in touched}
                sections = {key: value for key, value in fixed.items() if isinstance(value, Section)}
                common = {**common, **sections}
                to_copy = {key: value for key, value in sections.items() if value.changeable}
        return built


def _in_grid(error: ValidationError, point: _Point) -> ValidationError:
    """Return an error with the combination that made it, where the error is in a section that its grid touches."""
    first, *rest = error.problems
    touched = {key.partition(".")[0] for key in point.parameters}
    is_of_the_grid = first.split(" ", 1)[0].partition(".")[0] in touched
    return ValidationError(f"{first} (with {point})" if is_of_the_grid else first, *rest)


def _identity(value: Any) -> Any:
    """Return what two equal values of one key have in common and unequal ones do not."""
    if isinstance(value, Section):
        values = attrgetter(*value.key_names)(value)
        return tuple(_identity(inner) for inner in values) if value.changeable else values
    return canonical(value) if isinstance(value, list | dict) else value


def _check_distinct(built: Sequence[ExperimentConfig], points: Sequence[_Point]) -> None:
    """Refuse two experiments that differ in nothing but their names, or in all but those.

    Raises:
        ConfigurationError: there are two; the message says which.
    """
    touched = sorted({key.partition(".")[0] for point in points for key in point.parameters})
    seen: dict[Any, int] = {}
    names_seen: dict[str, int] = {}
    known: dict[int, Any] = {}  # experiments share sections
    for index, config in enumerate(built):
        values = [getattr(config, key) for key in touched]
        for value in values:
            if id(value) not in known:
                known[id(value)] = _identity(value)
        first = seen.setdefault(tuple(known[id(value)] for value in values), index)
        if first != index:
            raise ConfigurationError(
                f"experiments {first + 1} and {index + 1} are the same: {points[first]} and {points[index]}; "
                "remove one of them"
            )
        first = names_seen.setdefault(config.experiment_name.casefold(), index)
        if first != index:
            raise ConfigurationError(
                f"experiments {first + 1} and {index + 1} would both be called {config.experiment_name}: "
                f"{points[first]} and {points[index]}; choose another naming strategy"
            )
