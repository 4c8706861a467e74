"""Read tables of DeepEP's exchange of tokens between experts' ranks: ``<GPU>/deepep.csv``.

A row is a dispatch, in 8 bits with a scale for each 128 elements, and a combine, in 16 bits. Both send a copy of a
token to each rank, or between nodes to each node, that holds any of its experts: calls of one kind, of so many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from fitting.tables import Row
from predictor.core.costs.collectives import COLLECTIVES, DEEPEP
from predictor.core.costs.operator import Direction
from predictor.core.costs.work import ELEMENT_BYTES
from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.expert_exchange import visited

# Multiprocessors that Megatron-LM gives it (--moe-deepep-num-sms) and DeepEP's own default (deep_ep/buffer.py,
# Buffer.num_sms).
MULTIPROCESSORS = 20
ELEMENTS_PER_SCALE, SCALE_BYTES = 128, 4
# Bytes of an element by the part of a row.
PARTS = {"dispatch": 1.0 + SCALE_BYTES / ELEMENTS_PER_SCALE, "combine": float(ELEMENT_BYTES)}
TRAYS_OF_FOUR = ("GB200", "GB300")
GPUS_PER_NODE = 8


def rows_of(frame: pd.DataFrame, gpu: str) -> Iterator[Row]:
    """Yield the dispatches and combines that ran with as many multiprocessors as training gives them."""
    gpus = 4 if gpu.endswith(TRAYS_OF_FOUR) else GPUS_PER_NODE
    chosen = frame[(frame["dispatch_sms"] == MULTIPROCESSORS) & (frame["combine_sms"] == MULTIPROCESSORS)]
    for record in chosen.to_dict("records"):
        nodes, hidden = int(record["node_num"]), int(record["hidden_size"])
        experts = MixtureOfExperts(int(record["num_experts"]), int(record["topk"]), hidden)
        copies = record["num_tokens"] * visited(experts, nodes if nodes > 1 else gpus)
        for part, element_bytes in PARTS.items():
            us = float(record[f"{part}_transmit_us"] + record[f"{part}_notify_us"])
            shape = (int(copies * hidden * element_bytes), nodes, gpus)
            yield Row(COLLECTIVES[DEEPEP], f"{DEEPEP} {part}", Direction.FORWARD, shape, us)
