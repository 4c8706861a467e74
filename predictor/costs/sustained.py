"""How much longer matrix products take for as long as a training step repeats than in a table's short bursts.

A GPU that multiplies large matrices of random numbers without a pause draws all the power that its board allows, and
its clock settles below that of a burst: H200s at 1,405 to 1,527 MHz of 1,980, B200s at 1,228 to 1,410 of 1,965 (Bekman,
ml-engineering, compute/accelerator/benchmarks, MSMF). Tables of single products hold bursts, of weights that were never
written (vLLM's layers under aiconfigurator's collector), so that they draw less power still.

The ratio of both is that of the fastest sustained products to the fastest twentieth of the table's, since both run the
same kernels at different clocks. It applies to the time that the tensor cores decide: wholly to a product that reaches
``load.BOUND_BY_CLOCK`` of the peak, in part to a slower one.

Evidence does not agree: a B200 under Transformer Engine reaches 0.63 to 0.74 of the table's rate in large products
(SimuMax), a node of H200s the table's own 703 TFLOP/s at 8192 × 8192 × 12288, where the collector, too, had run for a
tenth of a second. So the ratio may count too much for products of a millisecond and more; intervals reach down to the
table's time.

Costs of single calls (``fitting evaluate``, ``predict_operator``) stay those of the tables. Rates and sources:
``device_sheets.yaml``; a GPU that ``microbench system`` measured says its own ratio.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from predictor.costs.device_sheets import sheet_named
from predictor.costs.hardware import Gpu
from predictor.costs.published import PublishedSystem
from predictor.costs.variants import under


def sustained_ratio(gpu: Gpu, precision: str) -> float:
    """Return the sustained rate of large products over that of the table's bursts, at most 1; 1 where not known."""
    if gpu.sustained_product_ratio is not None:
        return min(1.0, gpu.sustained_product_ratio.value)
    sheet = sheet_named(gpu.name)
    if sheet is None or precision not in sheet.sustained_tflop_per_s or precision not in sheet.burst_tflop_per_s:
        return 1.0
    return min(1.0, sheet.sustained_tflop_per_s[precision] / sheet.burst_tflop_per_s[precision])


@lru_cache(maxsize=64)
def in_training(system: PublishedSystem) -> PublishedSystem:
    """Return a system as it runs in a training step; unchanged where it sustains what its tables hold."""
    ratio = sustained_ratio(system.hardware.gpu, system.precision)
    return system if ratio == 1.0 else under(system, replace(system.load, sustained_ratio=ratio))
