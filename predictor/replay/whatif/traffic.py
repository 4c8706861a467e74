"""Changes of the network: links, the published system they belong to, the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.core.base.errors import ConfigError
from predictor.core.base.words import counted
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import PublishedSystem
from predictor.replay.whatif.collective_times import (
    BYTES_PER_US,
    CollectiveCosts,
    LinkCosts,
    SystemCosts,
    TimedCollective,
    fitted_links,
    measured_over_predicted,
    predicted_by_name,
    rescaled,
    timed_collectives,
)
from predictor.replay.whatif.scaling import touched
from predictor.replay.whatif.setting import Changed, Setting
from predictor.replay.whatif.traced_step import TracedStep

FAR = 8  # times the traced ranks; ranks of so many more nodes meet over other links


def links_of(step: TracedStep, setting: Setting) -> tuple[list[TimedCollective], LinkCosts]:
    """Return the step's collectives whose bytes are known, and the links that fit them.

    Raises:
        ConfigError: there are none, or they take no time.
    """
    known = [timed for timed in timed_collectives(step) if predicted_by_name(timed)]
    links = fitted_links(known)
    if known and not any(timed.us for timed in known):
        raise ConfigError(
            f"--set {setting.text}: a change before it lets the step's collectives take no time; give this one first"
        )
    if links is None:
        raise ConfigError(
            f"--set {setting.text}: the step has no collective of known size between ranks; record one with "
            "record_shapes, or scale communication*=FACTOR"
        )
    return known, links


def with_costs(step: TracedStep, costs: dict[int, Cost]) -> TracedStep:
    """Return the step with other times of some tasks; those that are still as measured keep no cost."""
    changed = {position: step.tasks[position]._replace(duration_us=cost.us) for position, cost in costs.items()}
    return step.with_tasks(changed, {p: cost for p, cost in costs.items() if cost.source is not Source.MEASURED})


def change_link(step: TracedStep, setting: Setting) -> Changed:
    """Change bandwidth or latency of the links; every collective keeps its ratio to what the links predict.

    Raises:
        ConfigError: the traced collectives do not tell what is to be changed, or there are none.
    """
    collectives, links = links_of(step, setting)
    is_bandwidth = setting.key == "link.bandwidth_GBps"
    if not (links.knows_bandwidth if is_bandwidth else links.knows_latency):
        what = "bandwidth" if is_bandwidth else "latency"
        raise ConfigError(
            f"--set {setting.text}: the {what} of the links is not known, as the times of the step's collectives "
            f"{links.doubt}; scale communication*=FACTOR"
        )
    if is_bandwidth:
        new = replace(links, us_per_byte=1.0 / (setting.number() * BYTES_PER_US))
    else:
        new = replace(links, hop_us=setting.number())
    costs = _moved(step, collectives, links, new)
    ratios = ratios_told(measured_over_predicted(collectives, links))
    notes = [f"Measured: {links.told()}; {ratios}, which is kept.", *links.doubts()]
    what = counted(len(costs), "collective")
    return touched(step, with_costs(step, costs), costs, what, *notes, *_caveats(step, collectives))


def _moved(
    step: TracedStep,
    collectives: Sequence[TimedCollective],
    before: CollectiveCosts,
    after: CollectiveCosts,
    ranks: int | None = None,
) -> dict[int, Cost]:
    """Return the costs of collectives that are predicted otherwise."""
    ratios = measured_over_predicted(collectives, before)
    return {
        timed.position: rescaled(
            step.cost(timed.position), _predicted(before, timed), _predicted(after, timed, ranks), ratios
        )
        for timed in collectives
    }


def _predicted(costs: CollectiveCosts, timed: TimedCollective, ranks: int | None = None) -> Cost:
    return costs(timed.name, timed.collective.size_bytes, timed.ranks if ranks is None else ranks)


def _caveats(step: TracedStep, collectives: list[TimedCollective]) -> list[str]:
    """Return notes on collectives that a change could not time, or whose time has waiting in it."""
    everything = timed_collectives(step)
    missing = len(everything) - len(collectives)
    notes = [f"{counted(missing, 'collective')} of unknown size kept their time."] if missing else []
    alone = sum(timed.position not in step.arrivals and timed.position not in step.added for timed in collectives)
    if alone:
        notes.append(f"{counted(alone, 'collective')} waited for ranks that were not traced; that is scaled too.")
    return notes


def change_ranks(step: TracedStep, setting: Setting, system: PublishedSystem | None) -> Changed:
    """Change the number of ranks of the groups that span the whole job; what a rank computes stays as it is."""
    ranks = setting.whole()
    collectives, links = links_of(step, setting)
    spanning = [timed for timed in collectives if timed.ranks == step.ranks[timed.rank].world_size]
    world = step.ranks[0].world_size
    if not spanning:
        raise ConfigError(f"--set {setting.text}: no collective of the step spans all {world} ranks")
    costs_of: CollectiveCosts = links if system is None else SystemCosts(system)
    costs = _moved(step, spanning, costs_of, costs_of, ranks)
    notes = [f"By {costs_of.told()}; {ratios_told(measured_over_predicted(spanning, costs_of))}, which is kept."]
    if system is None and ranks != world:
        notes += links.doubts()
    if system is None and ranks > FAR * world:
        notes.append(
            f"{ranks:,} ranks are far beyond the {world} of the trace, which does not know the links between more "
            "nodes; --system NAME does."
        )
    what = counted(len(costs), "collective")
    return touched(step, with_costs(step, costs), costs, what, *notes, *_caveats(step, collectives))


def ratios_told(ratios: Cost) -> str:
    """Return measured over predicted in words."""
    return f"measured over predicted {ratios.low_us:.3g} to {ratios.high_us:.3g}, together {ratios.us:.3g}"


def change_system_links(step: TracedStep, setting: Setting, by: PublishedSystem, to: PublishedSystem) -> Changed:
    """Move collectives from the links of one published system to those of another.

    Raises:
        ConfigError: the step has no collective of known size.
        PublishedError: a system has no regressor for one.
    """
    collectives, _ = links_of(step, setting)
    before, after = SystemCosts(by), SystemCosts(to)
    costs = _moved(step, collectives, before, after)
    note = f"Collectives: measured × {after.told()} ÷ {before.told()}."
    what = counted(len(costs), "collective")
    return touched(step, with_costs(step, costs), costs, what, note, *_caveats(step, collectives))
