"""Errors of transferred regressors: ``regressors/transfer_error.json``, read on first use.

``python -m fitting transfer-error`` measures it between the two published GPUs; a test repeats that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from predictor.base.bundled import REGRESSORS_FOLDER
from predictor.base.errors import PublishedError

TRANSFER_ERRORS = REGRESSORS_FOLDER / "transfer_error.json"
TRANSFER_ERROR_FORMAT = "estimate-train-time/transfer-error/1"


@dataclass(frozen=True, slots=True)
class TransferErrors:
    """90 % quantiles of |log(measured / predicted)|, and how far apart the two GPUs are.

    Attributes:
        regressors: of each regressor, from one GPU to the other or back and forward or backward, whichever is largest.
        kinds: the median of the same over all columns of matrix products (compute), and of streams (stream): no
            regressor is taken to be surer than its kind, because two GPUs are one example.
        collectives: of a collective that is timed by its bytes over links: from another of its kind, round a ring or
            sent straight (alike), and of an all-to-all from single messages (unlike).
        distance: log ratios of the GPUs' fp16 peaks (flops) and of their memory bandwidths (bytes).
    """

    regressors: dict[str, float]
    kinds: dict[str, float]
    collectives: dict[str, float]
    distance: dict[str, float]


@cache
def transfer_errors() -> TransferErrors:
    """Read the file, once per process.

    Raises:
        PublishedError: it is missing or damaged.
    """
    try:
        document = json.loads(TRANSFER_ERRORS.read_bytes())
        found = TransferErrors(**document["constants"], distance=document["distance"])
        is_known = document["format"] == TRANSFER_ERROR_FORMAT
    except OSError as error:
        raise PublishedError(f"{TRANSFER_ERRORS}: {error.strerror}; restore it") from None
    except (ValueError, KeyError, TypeError):
        is_known = False
    if not is_known:
        raise PublishedError(f"{TRANSFER_ERRORS} is damaged: expected format {TRANSFER_ERROR_FORMAT}; restore it")
    return found
