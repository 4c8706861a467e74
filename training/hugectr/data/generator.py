"""Generate a data set for a configuration: train and evaluation data, file lists and keysets.

Files lie where the configuration looks for them, so that it needs no change. Source of the command's arguments:
HugeCTR's user guide, "Generating Synthetic Data and Benchmarks".
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hugectr.data.file_list import write_file_list
from hugectr.data.keyset import write_keysets
from hugectr.data.norm import write_norm
from hugectr.data.parquet import write_parquet
from hugectr.data.raw import write_raw
from hugectr.data.sample_kind import sample_kind
from hugectr.data.samples import Floats, Samples
from hugectr.data.sources import check_key_width
from hugectr.data.synthetic import Synthesizer, ranking_auc
from hugectr.exceptions import HugeCtrError
from predictor.recommender.hugectr.reading import HugeCtrConfig
from predictor.recommender.workload.keys import TAILS

RAW_PART = 65536  # samples drawn at once for a Raw file


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is generated.

    Attributes:
        files: of the training data, over all its lists.
        samples: of each file.
        eval_files: None: an eighth of ``files``, at least one.
        lists: 0: one list for training and one for evaluation, named by the configuration; otherwise so many lists
            ``file_list.<i>.txt`` with their keysets in the folder, and one more for evaluation.
        per_table: each sparse input has keysets of its own.
    """

    files: int = 128
    samples: int = 40960
    eval_files: int | None = None
    lists: int = 0
    per_table: bool = False

    def check(self) -> None:
        """Check the numbers.

        Raises:
            HugeCtrError: one is not above 0, or files cannot be shared among lists.
        """
        for name, value in (("files", self.files), ("samples", self.samples), ("eval_files", self.num_eval_files)):
            if value < 1:
                raise HugeCtrError(f"{name} is {value}; expected a number above 0")
        if self.lists < 0 or (self.lists and self.files % self.lists):
            raise HugeCtrError(f"lists is {self.lists}; it must divide the {self.files} files")

    @property
    def num_eval_files(self) -> int:
        """Return the files of the evaluation data."""
        return max(1, self.files // 8) if self.eval_files is None else self.eval_files


@dataclass(frozen=True, slots=True)
class Generated:
    """What was written.

    Attributes:
        sources: file lists or files of the training data.
        eval_source: of the evaluation data.
        keysets: empty without lists of their own.
        best_auc: of the hidden probabilities on the evaluation data, of the first label; no model does better in
            expectation.
    """

    sources: tuple[Path, ...]
    eval_source: Path
    keysets: tuple[Path, ...]
    num_samples: int
    num_eval_samples: int
    best_auc: float


def generate(
    config: HugeCtrConfig,
    folder: Path | None = None,
    vocabulary: int | None = None,
    max_nnz: int = 1,
    *,
    amount: Amount | None = None,
    long_tail: str | None = None,
    seed: int = 0,
    i64_input_key: bool | None = None,
) -> Generated:
    """Write a data set.

    Args:
        config: whose data layer is served.
        folder: of the data files; not used for Raw, whose files the configuration names.
        vocabulary: keys of all slots together, shared out evenly; None: the slots' sizes of the configuration.
        max_nnz: a slot holds 1 to so many keys.
        amount: files and samples; Raw data have as many samples as the configuration says.
        long_tail: ``long``, ``medium`` or ``short``: keys of a power law of exponent 1, 3 or 5; None: uniform.
        seed: of all random numbers.
        i64_input_key: None: as the solver clause says, or as the format needs.

    Raises:
        HugeCtrError: the arguments do not go with the configuration, or the disk has not enough room.
    """
    data, amount = config.data, amount or Amount()
    amount.check()
    if long_tail is not None and long_tail not in TAILS:
        raise HugeCtrError(f"long_tail is {long_tail}; expected one of {', '.join(TAILS)}")
    is_64_bit = _is_64_bit(config) if i64_input_key is None else i64_input_key
    check_key_width(data, is_64_bit)
    kind = sample_kind(config, vocabulary, max_nnz, 0.0 if long_tail is None else TAILS[long_tail])
    writer = _Writer(config, Synthesizer(kind, seed), amount, is_64_bit)
    if data.format == "Raw":
        return writer.raw()
    if folder is None:
        raise HugeCtrError(f"folder is missing; format {data.format} needs one for its data files")
    sample_bytes = 4 * (1 + data.label.label_dim + data.dense.dense_dim)
    sample_bytes += kind.layout.num_slots * (4 + (8 if is_64_bit else 4) * (max_nnz + 1) // 2)
    _check_room(folder, sample_bytes * amount.samples * (amount.files + amount.num_eval_files))
    return writer.norm(folder) if data.format == "Norm" else writer.parquet(folder)


def _is_64_bit(config: HugeCtrConfig) -> bool:
    if config.data.format != "Norm":
        return config.data.format == "Parquet"
    return config.solver is not None and config.solver.input_key_type == "I64"


def _check_room(folder: Path, size_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if size_bytes > free:
        raise HugeCtrError(
            f"the data take {size_bytes / 1e9:,.1f} GB; {folder} has {free / 1e9:,.1f} GB free: generate fewer samples"
        )


class _Writer:
    """Writes in one of the formats."""

    def __init__(self, config: HugeCtrConfig, synthesizer: Synthesizer, amount: Amount, is_64_bit: bool) -> None:
        self._data, self._synthesizer = config.data, synthesizer
        self._amount, self._is_64_bit = amount, is_64_bit
        self._eval: list[tuple[NDArray[np.float64], Floats]] = []

    def _drawn(self, num_samples: int, part: int, is_eval: bool) -> Samples:
        samples, logits = self._synthesizer.draw(num_samples, part=part, is_eval=is_eval)
        if is_eval:
            self._eval.append((logits[:, 0], samples.label[:, 0]))
        return samples

    def _generated(self, sources: list[Path], eval_source: Path, num_samples: int) -> Generated:
        scores, labels = (np.concatenate(column) for column in zip(*self._eval, strict=True))
        return Generated(tuple(sources), eval_source, (), num_samples, labels.size, ranking_auc(scores, labels))

    def _place(self, name: str, field: str) -> Path:
        if not name:
            raise HugeCtrError(f"{field} of the data layer is missing; it says where the file list or file is written")
        return Path(name)

    def raw(self) -> Generated:
        """Write the two files that the configuration names."""
        data = self._data
        source, eval_source = self._place(data.source, "source"), self._place(data.eval_source, "eval_source")
        if data.num_samples is None or data.eval_num_samples is None:
            raise HugeCtrError("num_samples and eval_num_samples of the data layer must be given for Raw data")
        words = data.label.label_dim + data.dense.dense_dim + sum(sparse.slot_num for sparse in data.sparse)
        for path, num_samples, is_eval in (
            (source, data.num_samples, False),
            (eval_source, data.eval_num_samples, True),
        ):
            _check_room(path.parent, 4 * words * num_samples)
            parts = (
                self._drawn(min(RAW_PART, num_samples - start), start // RAW_PART, is_eval)
                for start in range(0, num_samples, RAW_PART)
            )
            write_raw(path, parts, is_float=data.float_label_dense)
        return self._generated([source], eval_source, data.num_samples)

    def norm(self, folder: Path) -> Generated:
        """Write data files, file lists and keysets."""

        def files(subfolder: str, count: int, is_eval: bool) -> list[Path]:
            paths = [folder / subfolder / f"gen_{number}.data" for number in range(count)]
            for number, path in enumerate(paths):
                samples = self._drawn(self._amount.samples, number, is_eval)
                write_norm(path, samples, is_64_bit=self._is_64_bit, is_checked=self._data.check == "Sum")
            return paths

        return self._listed(folder, files)

    def parquet(self, folder: Path) -> Generated:
        """Write data files, metadata and file lists."""

        def files(subfolder: str, count: int, is_eval: bool) -> list[Path]:
            parts: Iterator[tuple[str, Samples]] = (
                (f"gen_{number}.parquet", self._drawn(self._amount.samples, number, is_eval)) for number in range(count)
            )
            return write_parquet(folder / subfolder, parts)

        if self._amount.lists:
            raise HugeCtrError("lists is given; keysets go with Norm data alone")
        return self._listed(folder, files)

    def _listed(self, folder: Path, files: Callable[[str, int, bool], list[Path]]) -> Generated:
        amount, data = self._amount, self._data
        if amount.lists:
            places = [folder / f"file_list.{number}.txt" for number in range(amount.lists + 1)]
        else:
            places = [self._place(data.source, "source"), self._place(data.eval_source, "eval_source")]
        *sources, eval_source = places
        paths = files("train", amount.files, False)
        per_list = len(paths) // len(sources)
        for number, source in enumerate(sources):
            write_file_list(source, paths[number * per_list : (number + 1) * per_list])
        write_file_list(eval_source, files("val", amount.num_eval_files, True))
        written = self._generated(sources, eval_source, amount.files * amount.samples)
        if not amount.lists:
            return written
        keysets = [
            keyset
            for source in sources
            for keyset in write_keysets(data, str(source), is_64_bit=self._is_64_bit, per_table=amount.per_table)
        ]
        return replace(written, keysets=tuple(keysets))
