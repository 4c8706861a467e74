"""Published step times as configurations; every switch follows the paper or its script.

- Narayanan et al. 2021 (SC'21), arXiv:2104.04473, table 1: throughput per GPU on Selene (DGX A100, eight A100 of 80 GB
  a node behind NVSwitch, eight HDR InfiniBand links a node); micro-batch sizes, chunks per stage and the kind of
  data-parallel wrapper from the authors' script, Megatron-LM examples/sc21/run_table_1.sh. The paper's throughput is
  its equation 3 over the iteration time, so the time follows from it.
- Korthikanti et al. 2022, arXiv:2205.05198, tables 3 and 5: iteration times on Selene, with full recomputation, and
  with sequence parallelism and selective recomputation; no data parallelism.

Both train GPT models with Megatron-LM in fp16: LayerNorm, learned positions, biases, dropout, fused softmax, bias and
GELU, bias, dropout and addition in one kernel each, tied embeddings, a vocabulary of 51,200 and sequences of 2,048.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from predictor.verification.measured import MeasuredStep

SYSTEM = "Selene"
SEQUENCE, VOCABULARY = 2048, 51200


def _model(heads: int, hidden: int, layers: int) -> dict[str, Any]:
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "sequence_length": SEQUENCE,
        "vocab_size": VOCABULARY,
        "normalization": "layer_norm",
        "attention": "fused_softmax",
        "rotary_fraction": 0.0,
        "biases": True,
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
        "fused_side_kernels": True,
        "tied_embeddings": True,
    }


def iteration_seconds(hidden: int, layers: int, batch: int, gpus: int, tflop_per_s: float) -> float:
    """Return the iteration time behind a throughput: equation 3 of the paper, recomputation included."""
    factor = 1 + SEQUENCE / (6 * hidden) + VOCABULARY / (16 * layers * hidden)
    return 96 * batch * SEQUENCE * layers * hidden**2 * factor / (gpus * tflop_per_s * 1e12)


# name, heads, hidden, layers, tensor, pipeline, GPUs, batch, TFLOP/s per GPU; micro-batch, chunks, torch's own wrapper
SC21 = (
    ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1, True),
    ("3.6B", 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1, True),
    ("7.5B", 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1, True),
    ("18.4B", 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1, True),
    ("39.1B", 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 1, False),
    ("76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3, False),
    ("145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2, False),
    ("310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2, False),
    ("529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3, False),
    ("1008.0B", 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 1, False),
)
# name, heads, hidden, layers, pipeline, GPUs, batch, micro-batch, chunks, seconds with full recomputation and without
KORTHIKANTI = (
    ("22B", 64, 6144, 48, 1, 8, 4, 4, 1, 1.42, 1.10),
    ("175B", 96, 12288, 96, 8, 64, 64, 1, 3, 18.13, 13.75),
    ("530B", 128, 20480, 105, 35, 280, 280, 1, 3, 49.05, 37.83),
    ("1T", 160, 25600, 128, 64, 512, 512, 1, 1, 94.42, 71.49),
)


def _step(
    table: str,
    name: str,
    seconds: float,
    num_gpus: int,
    model: dict[str, Any],
    parallelism: dict[str, Any],
    **training: Any,
) -> MeasuredStep:
    config = {
        "system": SYSTEM,
        "model": model,
        "parallelism": parallelism | {"zero_stage": 0},
        "training": training,
    }
    return MeasuredStep(table, name, seconds, num_gpus, config)


def _sc21() -> Iterator[MeasuredStep]:
    for name, heads, hidden, layers, tp, pp, gpus, batch, tflops, micro_batch, num_chunks, overlaps in SC21:
        parallelism = {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "virtual_pipeline_parallel_size": num_chunks,
            "data_parallel_size": gpus // (tp * pp),
            "overlap_gradient_reduction": overlaps,
        }
        yield _step(
            "Narayanan et al. 2021, table 1",
            name,
            iteration_seconds(hidden, layers, batch, gpus, tflops),
            gpus,
            _model(heads, hidden, layers),
            parallelism,
            micro_batch_size=micro_batch,
            global_batch_size=batch,
            recompute="full",
        )


def _korthikanti() -> Iterator[MeasuredStep]:
    for name, heads, hidden, layers, pp, gpus, batch, micro_batch, num_chunks, full, present in KORTHIKANTI:
        for recompute, seconds in (("full", full), ("selective", present)):
            parallelism = {
                "tensor_parallel_size": 8,
                "pipeline_parallel_size": pp,
                "virtual_pipeline_parallel_size": num_chunks,
                "sequence_parallel": recompute == "selective",
                "overlap_tensor_parallel": True,
            }
            yield _step(
                "Korthikanti et al. 2022, table 5",
                f"{name}, recompute {recompute}",
                seconds,
                gpus,
                _model(heads, hidden, layers),
                parallelism,
                micro_batch_size=micro_batch,
                global_batch_size=batch,
                recompute=recompute,
            )


def published_runs() -> list[MeasuredStep]:
    """Return every published step time."""
    return [*_sc21(), *_korthikanti()]
