"""Load, save and compose configurations; a file is read again when it has changed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model_training_framework.config.errors import ConfigurationError, ValidationError
from model_training_framework.config.experiment import ExperimentConfig
from model_training_framework.config.explain import shown
from model_training_framework.config.fields import file_values
from model_training_framework.config.files import FORMATS, read_file, write_file
from model_training_framework.config.grid import ParameterGrid
from model_training_framework.config.nested import merged, with_values

Source = str | Path | Mapping[str, Any]
# A file that was written so shortly before it was read may be written again within one tick of the file system's clock.
CLOCK_TICK_NS = 100_000_000


class _Stamp(NamedTuple):
    """What changes when a file does."""

    mtime_ns: int
    size: int
    inode: int


class _Cached(NamedTuple):
    """A file's content as it was read."""

    stamp: _Stamp
    content: dict[str, Any]


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return _Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


class ConfigurationManager:
    """Files of a project's configurations.

    Attributes:
        project_root: folder of the project.
        config_dir: folder of its configurations.
    """

    def __init__(self, project_root: str | Path, config_dir: str | Path | None = None) -> None:
        """Start with nothing read.

        Args:
            project_root: folder of the project.
            config_dir: folder of its configurations; ``configs`` within it if absent.
        """
        self.project_root = Path(project_root)
        self.config_dir = self.project_root / "configs" if config_dir is None else Path(config_dir)
        self._cache: dict[Path, _Cached] = {}

    def find(self, config_path: str | Path) -> Path:
        """Return the path of a file: as given, else in the folder of configurations, else in the project.

        The ending may be left out.
        """
        path = Path(config_path)
        if not path.name:  # a folder, such as .
            return path
        folders = [Path(), self.config_dir, self.project_root]
        endings = ["", *FORMATS] if path.suffix not in FORMATS else [""]
        candidates = [(folder / path).with_name(path.name + ending) for folder in folders for ending in endings]
        missing = self.config_dir / path if self.config_dir.is_dir() else path
        return next((candidate for candidate in candidates if candidate.is_file()), missing)

    def load_config(self, config_path: str | Path, validate: bool = True, use_cache: bool = True) -> dict[str, Any]:
        """Return what a file says; it belongs to the caller.

        Args:
            config_path: of a YAML or JSON file; ``find`` says where it is looked for.
            validate: check that it is a whole and allowed experiment; a part of one needs False.
            use_cache: read the file again only if it has changed.

        Raises:
            FileNotFoundError: there is no such file; a ConfigurationError, too.
            ConfigurationError: it does not parse or is no mapping.
            ValidationError: a key is unknown or missing, or a value is not allowed.
        """
        path = self.find(config_path)
        content = self._read(path) if use_cache else read_file(path)
        if validate:
            try:
                ExperimentConfig.from_dict(content)
            except ValidationError as error:
                first, *rest = error.problems
                raise ValidationError(f"{path}: {first}", *rest) from None
        copied: dict[str, Any] = file_values(content)
        return copied

    def load_experiment(self, config_path: str | Path) -> ExperimentConfig:
        """Return the experiment that a file describes; errors as ``load_config``."""
        return ExperimentConfig.from_dict(self.load_config(config_path))

    def load_grids(self, path: str | Path) -> list[ParameterGrid]:
        """Return the grids of a file: one grid, or several below ``grids``.

        Raises:
            ConfigurationError: there is no such file, or a grid in it is not allowed.
        """
        place = self.find(path)
        content = self._read(place)
        several = content.get("grids", [content])
        if not isinstance(several, list) or not several or (len(content) > 1 and "grids" in content):
            raise ConfigurationError(f"{place}: expected one grid (name, parameters), or grids: and a list of them")
        try:
            return [ParameterGrid.from_dict(grid) for grid in several]
        except ConfigurationError as error:
            raise ConfigurationError(f"{place}: {error}") from None

    def save_config(
        self,
        config: Mapping[str, Any] | ExperimentConfig,
        output_path: str | Path,
        format: str = "yaml",  # noqa: A002 — the documented name
    ) -> None:
        """Write a configuration atomically; folders are made where they are missing.

        Args:
            config: a mapping, which is written as it is, or an experiment, which is written whole.
            output_path: of the file.
            format: yaml or json; the path's ending, if it is one of theirs, must agree.

        Raises:
            ConfigurationError: the format is wrong, or something in the configuration cannot be written.
            OSError: the file cannot be written; what was there before is there still.
        """
        if not isinstance(config, Mapping | ExperimentConfig):
            raise ConfigurationError(f"config is {shown(config)}; expected a mapping or an ExperimentConfig")
        content = config.to_dict() if isinstance(config, ExperimentConfig) else config
        write_file(content, Path(output_path), format)

    def compose_configs(
        self,
        base_config: Source,
        overrides: Iterable[Source] | None = None,
        parameter_overrides: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a configuration with others laid over it; nothing in it belongs to any of them.

        Mappings are merged key by key; anything else, lists and null included, replaces what was there. The result is
        not checked as a whole, as a grid may complete it: ``ExperimentConfig.from_dict`` does.

        Args:
            base_config: a file or a mapping.
            overrides: files or mappings, each over those before it.
            parameter_overrides: dotted keys and values, over everything.

        Raises:
            FileNotFoundError: there is no such file.
            ConfigurationError: a file does not parse, or a dotted key is unknown; the message names the nearest.
        """
        if isinstance(overrides, str | Path | Mapping):
            raise ConfigurationError(f"overrides is {shown(overrides)}; expected a list of files or mappings")
        composed = self._content(base_config)
        for override in overrides or ():
            composed = merged(composed, self._content(override))
        return with_values(composed, parameter_overrides or {})

    def clear_cache(self) -> None:
        """Forget every file that was read."""
        self._cache.clear()

    def _content(self, source: Source) -> dict[str, Any]:
        if isinstance(source, str | Path):
            return self.load_config(source, validate=False)
        if not isinstance(source, Mapping):
            raise ConfigurationError(f"{shown(source)} is no configuration; expected a file or a mapping")
        copied: dict[str, Any] = file_values(source)
        return copied

    def _read(self, path: Path) -> dict[str, Any]:
        """Return a file's content, from the cache where the file is still the one that was read."""
        if not path.is_file():
            return read_file(path)
        place = path.resolve()
        stamp = _stamp(place)
        cached = self._cache.get(place)
        if cached is not None and cached.stamp == stamp:
            return cached.content
        content = read_file(path)
        is_settled = time.time_ns() - stamp.mtime_ns > CLOCK_TICK_NS
        if is_settled and _stamp(place) == stamp:
            self._cache[place] = _Cached(stamp, content)
        return content
