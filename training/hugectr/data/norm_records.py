"""Records of a Norm file, before and after decoding."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hugectr.data.samples import Keys, Lengths

Bytes = NDArray[np.uint8]
KeyType = np.dtype[np.int64] | np.dtype[np.uint32]


class RecordLayout(NamedTuple):
    """What the records of a file hold.

    Attributes:
        start: byte of the first record.
        float_bytes: of labels and dense features, with which a sample begins.
    """

    path: Path
    start: int
    num_samples: int
    float_bytes: int
    num_slots: int
    is_checked: bool
    key_type: KeyType


class Decoded(NamedTuple):
    """Samples as they lie in a file.

    Attributes:
        numbers: labels and dense features, (samples, numbers).
        lengths: (slots, samples).
        keys: slot by slot, sample by sample.
    """

    numbers: NDArray[np.float32]
    lengths: Lengths
    keys: Keys
