"""Errors of transferred regressors: ``regressors/transfer_error.json``, read on first use.

``python -m fitting transfer-error`` measures it between the two published GPUs; a test repeats that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import PublishedError

TRANSFER_ERRORS = REGRESSORS_FOLDER / "transfer_error.json"
TRANSFER_ERROR_FORMAT = "estimate-train-time/transfer-error/1"


@dataclass(frozen=True, slots=True)
class TransferErrors:
    """90 % quantiles of |log(measured / predicted)| between the two measured GPUs.

    Attributes:
        regressors: of each regressor, the largest of both transfer directions and both passes.
        kinds: the median over all columns of matrix products (compute), and of streams (stream); a lower bound of every
            regressor's error, since two GPUs are a single example.
        collectives: of a collective timed by its bytes over links: from a collective of the same kind, ring or direct
            (alike), and of an all-to-all from point-to-point messages (unlike).
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
        errors = TransferErrors(**document["constants"], distance=document["distance"])
        is_known = document["format"] == TRANSFER_ERROR_FORMAT
    except OSError as error:
        raise PublishedError(f"{TRANSFER_ERRORS}: {error.strerror}; restore it") from None
    except (ValueError, KeyError, TypeError):
        is_known = False
    if not is_known:
        raise PublishedError(f"{TRANSFER_ERRORS} is damaged: expected format {TRANSFER_ERROR_FORMAT}; restore it")
    return errors
