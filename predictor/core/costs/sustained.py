"""How much longer matrix products take for as long as a training step repeats than in a table's short bursts.

Products without a pause draw all the power that a board allows, and its clock falls below that of a burst. Power at a
clock follows what the tensor cores do: a product that runs at ``full_clock`` of the peak just reaches the limit, one at
``reached`` would draw ``reached / full_clock`` times its switching power, and takes longer by that to the power of 1 /
2.5 (``hardware/power.py``). ``full_clock`` is read off aiconfigurator's tables with power (H200, B200, GB200): of
products at 95 % of the limit, the median of reached / ratio ** 2.5, where ratio is the time in a run of up to a second
over that in six short ones. With it the law misses the ratios by 3 to 9 % in the mean; one ratio for all products of a
table by 4 to 9 %. A product at 0.65 to 0.75 of the peak takes 1.11 times as long on H200 and 1.15 on B200, at 0.75 to
0.85 1.18 and 1.21. Library versions differ between the tables, too.

Fused attention follows the same law, 1.08 at 0.65 of an H200's peak. Its tables do not agree: calls at the limit over
calls at 0.5 to 0.8 of it have ratios 1.24, 1.13 and 1.18 times as large, in encoders 1.01, 1.04 and 0.99. Other GPUs of
the same tensor cores have the share by their watts per peak.

Witnesses: nodes with all GPUs busy settle at 699 and 752 TFLOP/s (H200) and at 1,426 (B200) in their best products
(Bekman, ml-engineering, compute/accelerator/benchmarks, MSMF); of bursts at 0.84 and 0.76 of the peak the tables' law
leaves 693 and 1,420. A B200 under Transformer Engine, at 1,070, does not agree (SimuMax): its share is a mean.

GB200's table is slower than that. Its products of 10^12 FLOP and more in bf16 reach 0.74 or 0.42 of the peak, with
nothing in the shape to tell which: 924 µs for (4096, 4096) x (4096, 51200), 1,713 µs for 4,353 rows. B200, the same
chip at 1,000 instead of 1,200 W, takes 0.68 of its peak for all of them, and GB200's own products of these shapes in
fp8, which draw less power, do not slow down. So the state was the table's, not the chip's, and in a step no product
of a GB200 takes longer than B200's (``no_slower_than``).

Costs of single calls (``fitting evaluate``, ``predict_operator``) stay those of the tables. Shares and sources:
``device_sheets.yaml``; a GPU that ``microbench system`` measured says the ratio of its large products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.slowdown import BOUND_BY_CLOCK
from predictor.core.costs.variants import slowed
from predictor.core.hardware.device_sheets import sheet_named
from predictor.core.hardware.hardware import Gpu
from predictor.core.hardware.power import EXPONENT, clock_ratio, switching_share


def full_clock(gpu: Gpu, precision: str) -> dict[str, float]:
    """Return the share of the peak up to which products keep the full clock, by ``Operator.computed_in``; empty: all.

    Args:
        gpu: with the ratio of its own sustained products, or a data sheet that knows the shares.
        precision: of products that name none.
    """
    sheet = sheet_named(gpu.name)
    shares = {} if sheet is None else dict(sheet.full_clock)
    own = gpu.sustained_product_ratio
    if own is not None:
        shares = dict.fromkeys((precision, *shares), BOUND_BY_CLOCK * own.value**EXPONENT) if own.value < 1.0 else {}
    if precision not in shares:
        return {}
    # A power limit lowers the rate of all products by its clock, and the power that is left by as much as theirs.
    slower = clock_ratio(gpu)
    return {name: share * slower for name, share in ({"": shares[precision]} | shares).items()}


def _at_sustained_clock(system: PublishedSystem) -> PublishedSystem:
    shares = full_clock(system.hardware.gpu, system.precision)
    limited = switching_share(system.hardware.gpu)
    return slowed(system, replace(system.slowdown, full_clock=shares, limited=limited)) if shares else system


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
    return sustains if unthrottled is None else slowed(sustains, replace(sustains.slowdown, unthrottled=unthrottled))
