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

GB200's table is slower than that. Its products of 10^12 FLOP and more in bf16 reach 0.74 or 0.42 of the peak, with
nothing in the shape to tell which: 924 µs for (4096, 4096) x (4096, 51200), 1,713 µs for 4,353 rows. B200, the same
chip at 1,000 instead of 1,200 W, takes 0.68 of its peak for all of them, and GB200's own products of these shapes in
fp8, which draw less power, do not slow down. So the state was the table's, not the chip's, and in a step no product
of a GB200 takes longer than B200's (``no_slower_than``).

Costs of single calls (``fitting evaluate``, ``predict_operator``) stay those of the tables. Rates and sources:
``device_sheets.yaml``; a GPU that ``microbench system`` measured says its own ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.variants import under
from predictor.core.hardware.device_sheets import sheet_named
from predictor.core.hardware.hardware import Gpu


def sustained_ratio(gpu: Gpu, precision: str) -> float:
    """Return the sustained rate of large products over that of the table's bursts, at most 1; 1 where not known."""
    if gpu.sustained_product_ratio is not None:
        return min(1.0, gpu.sustained_product_ratio.value)
    sheet = sheet_named(gpu.name)
    if sheet is None or precision not in sheet.sustained_tflop_per_s or precision not in sheet.burst_tflop_per_s:
        return 1.0
    return min(1.0, sheet.sustained_tflop_per_s[precision] / sheet.burst_tflop_per_s[precision])


def _at_sustained_clock(system: PublishedSystem) -> PublishedSystem:
    ratio = sustained_ratio(system.hardware.gpu, system.precision)
    return system if ratio == 1.0 else under(system, replace(system.load, sustained_ratio=ratio))


def _unthrottled(system: PublishedSystem) -> Callable[[Operator, Direction, Shape], float] | None:
    """Return the time of a product on the GPU that this one is no slower than, over its own, at most 1.

    Both are of the published tables, so that it holds for changed hardware, too. None where no such GPU is known, or
    the system measured its own sustained rate.
    """
    sheet = sheet_named(system.gpu)
    if sheet is None or sheet.no_slower_than is None or system.hardware.gpu.sustained_product_ratio is not None:
        return None
    own = _at_sustained_clock(system.opened_alike(system.folder))
    other = _at_sustained_clock(system.opened_alike(REGRESSORS_FOLDER / sheet.no_slower_than))

    def share(operator: Operator, direction: Direction, shape: Shape) -> float:
        return min(1.0, other.cost(operator, direction, shape).us / own.cost(operator, direction, shape).us)

    return share


@lru_cache(maxsize=64)
def in_training(system: PublishedSystem) -> PublishedSystem:
    """Return a system as it runs in a training step; unchanged where it sustains what its tables hold."""
    sustains, unthrottled = _at_sustained_clock(system), _unthrottled(system)
    return sustains if unthrottled is None else under(sustains, replace(sustains.load, unthrottled=unthrottled))
