"""Times of single operators and collectives from the Python interface of docs/python-api.md."""

from __future__ import annotations

from estimate_train_time import Predictor
from tests.golden.documents import Sections

GPUS = {"Perlmutter": "NVIDIAA100-SXM4-80GB", "Vista": "NVIDIAGH200120GB", "H100": "NVIDIAH10080GBHBM3"}
OPERATORS = (
    "embedding",
    "RMSlayernorm",
    "layernorm",
    "linear1",
    "linear2",
    "linear3",
    "linear4",
    "linear_final",
    "RoPE",
    "flash_atten",
    "baddbmm",
    "fillmask",
    "softmax",
    "ScaledUpperTriangMaskedSoftmax",
    "bmm",
    "gelu",
    "res_add",
    "parallel_cross_entropy_128",
)
ENCODERS = ((1, 4, 16, 2048, 2048), (4, 2, 64, 4096, 8192))  # mp, b, h, l, dim
ELEMENTS = (10_000, 50_000_000)


def _operators(predictor: Predictor, system: str) -> dict[str, list[float]]:
    """Return the time of every operator in microseconds: forward and backward, for each of ENCODERS."""
    folder = f"./regressors/{system}/operator"
    return {
        name: [
            predictor.operator_statistic(folder, folder, GPUS[system], [name], "fp16", encoder, direction)
            for encoder in ENCODERS
            for direction in ("fwd", "bwd")
        ]
        for name in OPERATORS
    }


def _collectives(predictor: Predictor, system: str) -> dict[str, list[float]]:
    """Return the time of collectives in microseconds, for each of ELEMENTS."""
    where = (f"./regressors/{system}/nccl", f"./regressors/{system}/nccl", GPUS[system])
    return {
        "mp_allreduce": [predictor.mp_allreduce(*where, elements, 8, 1) for elements in ELEMENTS],
        "dp_allreduce": [predictor.dp_allreduce(*where, elements, 2, 8, 1) for elements in ELEMENTS],
        "dp_allgather": [predictor.dp_allgather(*where, elements, 2, 8, 1) for elements in ELEMENTS],
        "pp_p2p": [predictor.pp_p2p(*where, elements, 2, 2, 4, 1) for elements in ELEMENTS],
    }


def interface() -> Sections:
    """Return what single operators and collectives take, by system."""
    predictor = Predictor()
    answers = {"operators_us": _operators, "collectives_us": _collectives}
    return {f"{system} {name}": dict(answer(predictor, system)) for system in GPUS for name, answer in answers.items()}
