"""Preconditions of a configuration and a session's settings, checked before the engine loads and tables are made."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from hugectr.data.sample_kind import data_of
from hugectr.data.sources import check_key_width
from hugectr.exceptions import HugeCtrError
from hugectr.solver import SolverParser
from predictor.recommender.hugectr.reading import HugeCtrConfig
from predictor.recommender.workload.model import Recommender


def check_data(config: HugeCtrConfig, solver: SolverParser) -> None:
    """Check that the data's format has the solver's keys and epochs.

    Raises:
        HugeCtrError: it has not.
    """
    data = data_of(config)
    if data.format == "Parquet" and not solver.repeat_dataset:
        raise HugeCtrError("repeat_dataset is False; data in format Parquet has no epochs, set it to True")
    check_key_width(data, solver.i64_input_key)


def check_oversubscription(config: HugeCtrConfig, temp_embedding_dir: str) -> None:
    """Check that rows can wait unloaded, and that there is a folder for them.

    Raises:
        HugeCtrError: the format has no keysets, all rows of a table are allocated, or the folder is not writable.
    """
    if not temp_embedding_dir:
        raise HugeCtrError(
            f"temp_embedding_dir is {temp_embedding_dir!r}; with use_model_oversubscriber name a folder to write to"
        )
    if config.data.format != "Norm":
        raise HugeCtrError(f"use_model_oversubscriber needs data in format Norm, not {config.data.format}")
    check_tables(config.model)
    try:
        Path(temp_embedding_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=temp_embedding_dir):
            pass
    except OSError as error:
        raise HugeCtrError(
            f"temp_embedding_dir {temp_embedding_dir} is not writable: {error.strerror}; name another folder"
        ) from None


def check_tables(model: Recommender) -> None:
    """Check that all tables are hash tables, whose rows can wait unloaded.

    Raises:
        HugeCtrError: a layer has slot_size_array.
    """
    for layer in model.embeddings:
        if layer.slot_rows:
            raise HugeCtrError(
                f"layer {layer.name} has slot_size_array, whose rows are all allocated; the model oversubscriber loads "
                "hash tables: give max_vocabulary_size_per_gpu alone"
            )


def file_name(argument: str, value: object) -> str:
    """Return the name of a file as text.

    Raises:
        HugeCtrError: it is none.
    """
    if not isinstance(value, str | os.PathLike):
        raise HugeCtrError(f"{argument} is {value!r}; expected a path")
    return str(os.fspath(value))


def check_writable(argument: str, name: str) -> None:
    """Make a file's folder, and check that the file can be written; '' is no file.

    Raises:
        HugeCtrError: it cannot.
    """
    if not name:
        return
    try:
        folder = Path(name).parent
        folder.mkdir(parents=True, exist_ok=True)
        if Path(name).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise HugeCtrError(f"{argument}: {name} cannot be written: {error.strerror}; name another file") from None
