"""A plan as a page of text: the answer, how sure it is, what it rests on, then the table of all plans."""

from __future__ import annotations

from math import inf

from predictor.core.base.quantities import duration, span
from predictor.core.base.text_table import text_table
from predictor.core.base.words import counted
from predictor.core.reliability.wall_times import Cause
from predictor.core.report.text import headline, wrapped
from predictor.core.step.highest_mfu import mfu_note
from predictor.core.step.memory import GIB
from predictor.layout_search.rank import described
from predictor.training_plan.amounts import spelled
from predictor.training_plan.outcome import Outcome
from predictor.training_plan.outlook import HIGH, LOW
from predictor.training_plan.plans import LIKELY, NO_LAYOUT, LeftOut, TrainingPlan
from predictor.training_plan.report.words import amount, named, percent

LABEL = 11
CHOSEN, ON_FRONT = "*", "+"
HEAD = ("", "system", "GPUs", "batch", "step", "MFU", "training", "done by", "{cost}", "chance", "layout")
KINDS = ("takes ", "costs ", NO_LAYOUT)  # beginnings of reasons that differ in their numbers alone
CAUSES = {
    Cause.RECOMPUTED: "steps done again",
    Cause.RESTART: "restarts",
    Cause.CHECKPOINT: "checkpoints",
    Cause.WAITING: "waiting for nodes",
    Cause.MAINTENANCE: "planned stops",
    Cause.SLOW: "slow nodes",
}


def answer_lines(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the answer as labelled sentences."""
    plan, question = outcome.chosen, outcome.question
    low, high = plan.interval_hours
    calendar, file = question.calendar, question.file
    said, never_ends = [("Plan", sentence(outcome))], no_progress(plan)
    if low == inf:
        return [*said, ("", never_ends or "")]
    dates = {hours: f"{spelled(calendar.day(hours))} ({span(hours)})" for hours in (low, plan.hours, high)}
    half = [] if plan.hours == inf else [f"half of the time by {dates[plan.hours]}"]
    when = [*half, f"90 % of the time between {dates[low]} and {dates[high]}"]
    if high == inf:
        when = [f"5 % of the time by {dates[low]}", *half]
    in_time, in_budget = _kept(outcome)
    said.append(("Date", f"from {spelled(calendar.start)} on; {', '.join(when)}{in_time}"))
    said += [] if never_ends is None else [("", never_ends)]
    if plan.hours == inf:
        return said
    if plan.price_per_hour is not None:
        spot = ", spot" if plan.purchase.is_spot else ""
        each = f"{plan.purchase.price_per_gpu_hour:,.4g} {file.currency} a GPU-hour{spot}"
        up_to = f"half of the time up to {amount(plan.likely_price)} {file.currency}"
        said.append(("Price", f"{each}; {up_to}{in_budget}"))
    else:
        said.append(("GPU-hours", f"half of the time up to {amount(plan.cost)}; no price is known"))
    return said


def no_progress(plan: TrainingPlan) -> str | None:
    """Return how often a training never ends, and what to do about it; None where it always does."""
    never = 1.0 - plan.outlook.chance_within(None)
    if never == 0.0:
        return None
    return (
        f"With {percent(never)} the training makes no progress among interruptions, and never ends: fewer GPUs, or "
        "other values in budget."
    )


def sentence(outcome: Outcome) -> str:
    """Return the answer in a sentence."""
    return f"{named(outcome.chosen)}: {outcome_words(outcome)}"


def outcome_words(outcome: Outcome) -> str:
    """Return by when and for how much a plan is done, and how sure that is."""
    plan, file = outcome.chosen, outcome.question.file
    calendar = outcome.question.calendar
    hours = calendar.hours
    chance = plan.outlook.chance_within(hours) if hours is not None else file.probability
    within = hours if hours is not None else plan.hours_at(file.probability)
    low, high = plan.interval_hours
    by = f"done by {spelled(calendar.day(within))} with {percent(chance)}"
    if within == inf:
        by = f"ever done with {percent(plan.outlook.chance_within(None))}"
    if plan.price_per_hour is None or low == inf:
        return by
    if high == inf:
        return f"{by}, from {amount(plan.price(low))} {file.currency} on"
    return f"{by}, {amount(plan.price(low))} to {amount(plan.price(high))} {file.currency}, 90 % of the time"


def _kept(outcome: Outcome) -> tuple[str, str]:
    """Return the chances of deadline and budget, each for its line."""
    plan, file = outcome.chosen, outcome.question.file
    hours = outcome.question.calendar.hours
    date = "" if hours is None else f"; in time with {percent(plan.outlook.chance_within(hours))}"
    if file.max_price is None or not plan.price_per_hour:
        return date, ""
    within = plan.chance(None, file.max_price)
    both = "" if hours is None else f", both with {percent(plan.probability)}"
    return date, f"; within {amount(file.max_price)} with {percent(within)}{both}"


def missed(outcome: Outcome) -> str | None:
    """Return by how much the nearest plan misses what was asked; None where it keeps it."""
    plan, question = outcome.chosen, outcome.question
    file, hours = question.file, question.calendar.hours
    if outcome.is_kept:
        return None
    asked = [] if hours is None else [spelled(question.calendar.day(hours))]
    asked += [] if file.max_price is None else [f"{amount(file.max_price)} {file.currency}"]
    late = plan.hours_at(file.probability)
    by = []
    if late != inf and hours is not None and late > hours:
        by.append(f"it is done by {spelled(question.calendar.day(late))}, {span(late - hours)} later")
    price = plan.price(late)
    if price is not None and price != inf and file.max_price is not None and price > file.max_price:
        by.append(f"it costs {amount(price)} {file.currency}, {amount(price - file.max_price)} more")
    probability, what = percent(file.probability), "both" if len(asked) > 1 else "it"
    none = "No plan" if outcome.considered.is_whole else "None of the plans so far"
    keeps = f"keeps {' and '.join(asked)}" if asked else "ends"
    nearest = f"keeps {what}" if asked else "ends"
    misses = f": with {probability} {' and '.join(by)}" if by else ""
    if late == inf:
        misses = f", and never ends with {percent(1.0 - plan.outlook.chance_within(None))}"
    return f"{none} {keeps} with {probability}. The nearest {nearest} with {percent(plan.probability)}{misses}."


def basis_lines(outcome: Outcome) -> list[tuple[str, str]]:
    """Return what the chosen plan rests on, as labelled sentences."""
    plan = outcome.chosen
    winner, work, walls = plan.winner, plan.work, plan.outlook.walls
    step, memory = winner.prediction.step, plan.answer.memory_gib
    of = "" if memory is None else f" of {memory:.1f}"
    interval = f"90 % interval {duration(step.low_us)} – {duration(step.high_us)}"
    layout = described(winner.ranked.plan)
    size = f"MFU {winner.prediction.mfu:.1%}, {winner.ranked.memory_bytes / GIB:.1f}{of} GiB"
    said = [("Layout", layout), ("Step", f"{duration(step.us)}, {interval}; {size}")]
    parts = [f"{work.tokens / 1e9:,.4g} billion tokens in {work.steps:,} steps, {span(work.step_hours)}"]
    parts += [f"ramp-up of the batch {span(work.ramp_up_hours)}"] if work.ramp_up_hours else []
    parts += [f"evaluation {span(work.evaluation_hours)}"] if work.evaluation_hours else []
    said.append(("Work", "; ".join(parts)))
    if any(draw.hours != inf for draw in walls.draws):
        counts = (walls.interruptions(probability) for probability in (LIKELY, LOW, HIGH))
        median, low, high = ("no end" if count == inf else f"{count:,.0f}" for count in counts)
        lost = [
            f"{name} {walls.shares()[cause]:.1%}" for cause, name in CAUSES.items() if walls.shares()[cause] >= 5e-4
        ]
        among = f"{median} failures ({low} to {high}, 90 % of the time), goodput {percent(walls.goodput(LIKELY))}"
        said.append(("Lost", "; ".join([among, ", ".join(lost)] if lost else [among])))
    if any(draw.hours == inf for draw in walls.draws):  # no variance to share out
        return said
    return [*said, ("Risk", risk_words(outcome.risks, cost_name(outcome)))]


def cost_name(outcome: Outcome) -> str:
    """Return what plans are compared by beside the date: prices of all, or GPU-hours."""
    return "GPU-hours" if outcome.chosen.price_per_hour is None else "price"


def risk_words(risks: dict[str, float], cost: str) -> str:
    """Return what moves the date and the price or GPU-hours most, by its share of their variance."""
    said = [(name, percent(share)) for name, share in risks.items() if share >= 0.01]
    if not said:
        return "no single cause moves the date: chance does"
    (first, most), *others = said
    rest = "".join(f", {name} {share}" for name, share in others)
    moved = f"{first} moves date and {cost} most: were it known, {most} of their variance would go"
    return f"{moved}; then{rest[1:]}" if rest else moved


def _row(outcome: Outcome, plan: TrainingPlan) -> list[str]:
    winner, file = plan.winner, outcome.question.file
    space = plan.answer.space
    on_front = ON_FRONT if outcome.is_on_front(plan) else ""
    price = plan.cost
    currency = "" if plan.likely_price is None else f" {file.currency}"
    spot = " spot" if plan.purchase.is_spot else ""
    precision = f" {plan.case.precision}" if plan.case.precision is not None else ""
    has_limit = plan.limit_hours is not None
    return [
        CHOSEN if plan is outcome.chosen else on_front,
        f"{plan.case.offer.name}{precision}{spot}",
        f"{plan.case.num_gpus:,}",
        f"{space.global_batch_size:,}",
        duration(winner.prediction.step.us),
        f"{winner.prediction.mfu:.1%}",
        span(plan.hours),
        "-" if plan.hours == inf else spelled(outcome.question.calendar.day(plan.hours)),
        "-" if price == inf else f"{amount(price)}{currency}",
        percent(plan.probability) if has_limit else "-",
        described(winner.ranked.plan),
    ]


def table(outcome: Outcome) -> list[str]:
    """Return the plans as aligned lines, and what their marks mean."""
    shown, rest = outcome.shown
    what = cost_name(outcome)
    head = tuple(each.format(cost=what) for each in HEAD)
    lines = text_table([head, *(_row(outcome, plan) for plan in shown)], left=(0, 1, -1))
    fewer = "cheaper" if what == "price" else "of fewer GPU-hours"
    legend = f"{CHOSEN} chosen, {ON_FRONT} no plan is both {fewer} and earlier; training, date and {what} are medians"
    more = [f"and {rest:,} more: --top {len(shown) + rest}"] if rest else []
    return [*lines, *more, legend]


def left_out_lines(left_out: tuple[LeftOut, ...]) -> list[str]:
    """Return why cases have no plan, those of one system and kind of reason together."""
    groups: dict[tuple[str, str | None, str], list[LeftOut]] = {}
    for each in left_out:
        kind = next((kind for kind in KINDS if each.reason.startswith(kind)), each.reason)
        groups.setdefault((each.case.offer.name, each.case.precision, kind), []).append(each)
    lines = []
    for (name, precision, _), group in groups.items():
        counts = sorted({each.case.num_gpus for each in group})
        sizes = counted(counts[0], "GPU") if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} GPUs"
        best = group[-1].reason
        of = f" in {precision}" if precision is not None else ""
        lines.append(f"No plan on {sizes} of {name}{of}: {best}.")
    return lines


def render(outcome: Outcome, width: int) -> str:
    """Return the plan as a page of text, its sentences no longer than ``width``."""
    miss = missed(outcome)
    first = [each for each in (outcome.interrupted, miss) if each is not None]
    lines = wrapped([" ".join(first)], width, 2) if first else []
    labelled = [*answer_lines(outcome), *basis_lines(outcome)]
    for label, sentence in labelled:
        start, *others = wrapped([sentence], width - LABEL, 0)
        lines += [f"{label:{LABEL}}{start}", *(f"{'':{LABEL}}{line}" for line in others)]
    lines += wrapped(trust(outcome), width, 2)
    lines += ["", *table(outcome)]
    notes = [*left_out_lines(outcome.considered.left_out), *above_elsewhere(outcome), *outcome.notes]
    return "\n".join([*lines, *([""] if notes else []), *wrapped([f"Note: {note}" for note in notes], width, 6)])


def trust(outcome: Outcome) -> list[str]:
    """Return the sentences on how far to trust the step: its conditions, what is not modelled, an MFU above all."""
    plan = outcome.chosen
    return headline(plan.winner.prediction, plan.answer.system)


def above_elsewhere(outcome: Outcome) -> list[str]:
    """Return the sentences on MFUs that nobody published, of the systems and precisions that are not chosen."""
    chosen = (outcome.chosen.case.offer.name, outcome.chosen.case.precision)
    highest: dict[tuple[str, str | None], TrainingPlan] = {}
    for plan in sorted(outcome.considered.plans, key=lambda plan: plan.winner.prediction.mfu):
        highest[plan.case.offer.name, plan.case.precision] = plan
    others = {key: plan for key, plan in highest.items() if key != chosen}
    said = {key: mfu_note(plan.winner.prediction) for key, plan in others.items()}
    return [f"{named(others[key])}: {note}" for key, note in said.items() if note is not None]
