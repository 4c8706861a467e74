"""Synthetic measurement tables with known physics; no measured row is stored in the project."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from fitting.systems import SystemSource
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import Direction

GPU = "TESTGPU"
SMS = 100
LAUNCH_US, US_PER_BYTE = 5.0, 1e-6
US_PER_WIRE_BYTE = 1e-4

SYSTEM = {
    "hardware": {
        "name": "Testbed",
        "gpus_per_node": 4,
        "gpu": {
            "name": GPU,
            "num_multiprocessors": {"value": SMS, "source": "test"},
            "peak_tflop_per_s": {"fp16": {"value": 300, "source": "test"}},
            "memory_bandwidth_gb_per_s": {"value": 2000, "source": "test"},
            "l2_cache_mb": {"value": 40, "source": "test"},
        },
        "links": {
            "intra_node_gb_per_s": {"value": 300, "source": "test"},
            "inter_node_gb_per_s": {"value": 25, "source": "test"},
        },
        "host": {},
    },
    "provenance": {"measured_by": "a test", "attribution": "none", "known": [], "not_stated": ["everything"]},
}


def source() -> SystemSource:
    return SystemSource.model_validate(SYSTEM)


def bumpy(size: int) -> float:
    """A factor around 1 that physics cannot explain and a residual can."""
    return 1.1 if size % 512 else 1.0


def gelu_us(tokens: int, width: int, direction: Direction) -> float:
    work = catalogue()["gelu"].work((tokens, width), direction, SMS)
    return (LAUNCH_US + US_PER_BYTE * work.size_bytes) * bumpy(tokens)


def write_gelu(folder: Path, precision: str = "fp16") -> None:
    rows = []
    for batch, length, dim, mp in product((1, 2, 4, 8), (256, 384, 512, 1024, 1536), (1024, 2048, 4096, 6144), (1, 2)):
        forward, backward = (gelu_us(batch * length, 4 * dim // mp, direction) for direction in Direction)
        rows.append((mp, batch, length, dim, forward, backward))
    folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows, columns=["mp", "b", "l", "dim", "F_dur(us)", "B_dur(us)"])
    frame.to_csv(folder / f"{GPU}_gelu_{precision}.csv", index=False)


def write_all_gather(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for nodes, gpus in ((2, 1), (4, 1)):
        elements = np.unique(np.geomspace(1e5, 1e8, 80).astype(int))
        operator = COLLECTIVES["all_gather"]
        works = [operator.work((2 * int(e), nodes, gpus), Direction.FORWARD, SMS) for e in elements]
        us = [50.0 + US_PER_WIRE_BYTE * work.extras[1] for work in works]
        frame = pd.DataFrame({"shape": elements, "nodes": nodes, "GPUsPerNode": gpus, "dur(us)": us})
        frame.to_csv(folder / f"{GPU}_allgather_large_fp16_{nodes}_{gpus}.csv", index=False)


def write_cluster(folder: Path) -> Path:
    write_gelu(folder / "operator")
    write_all_gather(folder / "nccl")
    return folder
