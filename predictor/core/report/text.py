"""A prediction as text: step time, breakdown per stage, and sources."""

from __future__ import annotations

from pathlib import Path
from textwrap import TextWrapper

from predictor.core.base.quantities import duration, milliseconds, span
from predictor.core.base.words import counted
from predictor.core.costs.cost import Source
from predictor.core.costs.published import CARD, PublishedSystem
from predictor.core.plan.loading import Loaded
from predictor.core.report.budget import prediction_bill
from predictor.core.report.goodput import Goodput
from predictor.core.report.json_document import fullest_verdict, notes
from predictor.core.report.not_modelled import conditions_note, not_modelled_note
from predictor.core.report.slowest import slowest_rank
from predictor.core.report.stage_table import stage_table
from predictor.core.schema.finding import others_with
from predictor.core.schema.sections import NO_BUDGET
from predictor.core.step.breakdown import BY_BYTES, Answer, StageParts, answers, source_shares, stage_parts
from predictor.core.step.composition import StepTime
from predictor.core.step.highest_mfu import mfu_note
from predictor.core.step.memory import GIB, StageMemory, step_memory
from predictor.core.step.memory_verdict import MemoryVerdict, memory_verdict_on
from predictor.core.step.prediction import Prediction
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.layout import Layout
from predictor.core.workload.low_precision import product_precision
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer import Transformer

TITLE = "Step time  "
# Longer lists of operators are cut; --json has all.
LISTED = 12
SMALLEST_LISTED = 0.0005
VERDICTS = {
    None: "",
    MemoryVerdict.FITS: ": fits",
    MemoryVerdict.MAY_NOT_FIT: ": MAY NOT FIT",
    MemoryVerdict.DOES_NOT_FIT: ": DOES NOT FIT",
}


def _count(value: float) -> str:
    """Return a number of parameters with its unit: T, B or M."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}"


def _runs(values: tuple[int, ...]) -> str:
    """Return what every stage has, like neighbours together: 11, 12 on 62 stages, 9."""
    groups: list[list[int]] = []
    for value in values:
        if groups and groups[-1][0] == value:
            groups[-1][1] += 1
        else:
            groups.append([value, 1])
    return ", ".join(
        f"{value} on {count} stages" if count > 2 else ", ".join([str(value)] * count) for value, count in groups
    )


def short_path(path: Path) -> str:
    """Return a path relative to the current folder where it lies inside it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _precision(run: TrainingRun) -> str:
    """Return the precision of a run, and that of its products where it is another."""
    product = product_precision(run)
    return run.precision if product == run.precision else f"{run.precision} with {product} products"


def _heads(model: Transformer) -> str:
    shared = model.key_value_heads < model.num_attention_heads
    return f"{model.num_attention_heads} heads" + (f" ({model.key_value_heads} key-value)" if shared else "")


def _experts(model: Transformer) -> str:
    if model.experts is None:
        return ""
    active = _count(model.num_parameters(active=True))
    return f", {model.experts.experts_per_token} of {model.experts.num_experts} experts ({active} active)"


def _degrees(layout: Layout) -> str:
    """Return the degrees of parallelism; context and expert only where there are any."""
    context = f" × {layout.context_parallel_size} context" if layout.context_parallel_size > 1 else ""
    split = f" × {layout.expert_split} expert-tensor" if layout.is_folded else ""
    experts = f" ({layout.expert_parallel_size} expert{split})" if layout.expert_parallel_size > 1 or split else ""
    return (
        f"{layout.pipeline_parallel_size} pipeline × {layout.tensor_parallel_size} tensor{context} × "
        f"{layout.data_parallel_size} data{experts}"
    )


def _places(layout: Layout) -> str:
    """Return how many GPUs of a node, and of an NVLink domain over nodes, the run uses."""
    per_node = f"{layout.gpus_per_node} per node"
    return per_node if layout.gpus_per_domain is None else f"{per_node}, {layout.reach} per NVLink domain"


def _memory(prediction: Prediction, system: PublishedSystem) -> str:
    """Return the memory of the fullest GPU, beside its capacity."""
    needed = step_memory(prediction.tasks)
    stage = max(range(len(needed)), key=lambda i: needed[i].total)
    where = f" on stage {stage}" if len(needed) > 1 else ""
    return memory_text(needed[stage], system, where, memory_verdict_on(needed[stage].total, system))


def memory_text(memory: StageMemory, system: PublishedSystem, where: str, verdict: MemoryVerdict | None) -> str:
    """Return the memory of one GPU beside its capacity, and what it holds; ``where`` is said behind the capacity."""
    limit = system.hardware.gpu.memory_gib
    of = "" if limit is None else f" of {limit.value:.1f} GiB"
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations + memory.working,
        "buffers": memory.buffers,
        "allowance": memory.allowance,
    }
    listed = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
    return f"{memory.total / GIB:.1f}{of}{where}{VERDICTS[verdict]} ({listed})"


def _budget(prediction: Prediction, loaded: Loaded) -> str:
    """Return time, energy and price of a training."""
    bill = prediction_bill(prediction, loaded)
    steps = f"{bill.steps:,} steps" if loaded.budget.train_tokens is not None else "one step"
    text = f"{steps} in {span(bill.hours)} ({span(bill.low_hours)} – {span(bill.high_hours)})"
    text += f", {_amount(bill.gpu_hours)} GPU-hours"
    if bill.energy_kwh is not None:
        ends = f"{_amount(bill.low_energy_kwh or 0.0)} – {_amount(bill.high_energy_kwh or 0.0)}"
        text += f", {_amount(bill.energy_kwh)} kWh ({ends}) at {bill.power_per_gpu_w:,.0f} W a GPU: {bill.power_source}"
    text += "" if bill.price is None else f", price {bill.price:,.2f}"
    text += "" if bill.energy_price is None else f", energy price {bill.energy_price:,.2f}"
    text += "" if bill.carbon_kg is None else f", carbon {_amount(bill.carbon_kg)} kg"
    return text + ("" if bill.goodput is None else f"; {_goodput(bill.goodput)}")


def _goodput(among_failures: Goodput) -> str:
    """Return what interruptions and checkpoints leave of a training's time."""
    saves = (
        f"a checkpoint of {_amount(among_failures.checkpoint_gb)} GB every "
        f"{span(among_failures.checkpoint_interval_hours)}"
    )
    if among_failures.hours is None or among_failures.failures is None:
        return f"no progress among interruptions, with {saves}"
    low, high = among_failures.low_share, among_failures.high_share
    ends = "" if low is None or high is None else f" ({low:.0%} – {high:.0%})"
    fewest, most = among_failures.low_failures, among_failures.high_failures
    failures = _amount(among_failures.failures)
    failures += "" if fewest is None or most is None else f" ({_amount(fewest)} – {_amount(most)})"
    share = f"goodput {among_failures.share:.1%}{ends}"
    return f"{share}: {span(among_failures.hours)} with {failures} interruptions and {saves}"


def _amount(value: float) -> str:
    """Return a quantity to four digits, thousands separated."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def above_published(prediction: Prediction, system: PublishedSystem) -> str | None:
    """Return that the MFU is above every published run's, and the other systems of the GPU; None where it is not."""
    note = mfu_note(prediction)
    if note is None:
        return None
    others = others_with(system.gpu, system.name)
    return f"{note} Other systems of this GPU: {', '.join(others)}; compare --system NAME." if others else note


def headline(prediction: Prediction, system: PublishedSystem) -> list[str]:
    """Return the sentences that stand directly below the time of a step: its conditions, what speaks against it."""
    said = [
        conditions_note(prediction),
        not_modelled_note(prediction),
        above_published(prediction, system),
    ]
    return [sentence for sentence in said if sentence is not None]


def sources_text(timed: StepTime, system: PublishedSystem) -> str:
    """Return the share of the step by source: 88% interpolated, 6% extrapolated, 6% analytic."""
    shares = source_shares(timed, system)
    return ", ".join(f"{_whole_percent(share)} {source.label}" for source, share in shares.items())


def _whole_percent(share: float) -> str:
    """Return a share in whole percent; neither a rest nor its complement is rounded away."""
    if share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1.0 else f"{share:.0%}"


def header_rows(prediction: Prediction, loaded: Loaded) -> dict[str, str]:
    """Return step, model, layout, training, system, speed, memory and budget by their titles."""
    step, run, system = prediction.step, loaded.run, loaded.system
    model, layout = run.model, run.layout
    rows = {
        "Step time": (
            f"{duration(step.us)}   90 % interval {duration(step.low_us)} – {duration(step.high_us)}   "
            f"{sources_text(prediction, system)}"
        ),
        "Model": (
            f"{_count(model.num_parameters())} parameters: {model.num_layers} layers, hidden {model.hidden_size}, "
            f"{_heads(model)}, sequence {model.sequence_length}, vocabulary {model.vocab_size}{_experts(model)}"
        ),
        "Layout": (
            f"{counted(layout.num_gpus, 'GPU')} = {_degrees(layout)} parallel, {_places(layout)}; layers "
            f"{_runs(run.layers_per_stage)}"
        ),
        "Training": (
            f"{counted(run.global_batch_size, 'sample')} = {run.micro_batch_size} × "
            f"{counted(run.num_micro_batches, 'micro-batch')} × {layout.data_parallel_size}; {_precision(run)}, "
            f"recompute {run.recompute}, "
            f"{SCHEDULES[run.schedule].label}, ZeRO-{run.zero_stage}"
        ),
        "System": f"{system.name}, {system.gpu}; card: {short_path(system.folder / CARD)}",
        "Speed": (
            f"{prediction.tokens_per_second:,.0f} tokens/s, "
            f"{prediction.model_flops_per_second / 1e12:.1f} model TFLOP/s per GPU, MFU {prediction.mfu:.1%}"
        ),
        "Memory": _memory(prediction, system),
    }
    if loaded.budget != NO_BUDGET:
        rows["Budget"] = _budget(prediction, loaded)
    return rows


def foundations(step_us: float, answered: list[Answer]) -> list[str]:
    """Return the answers that are not interpolated, and how far outside the measured range they lie."""
    weak = [answer for answer in answered if answer.source > Source.INTERPOLATED]
    if not weak:
        return ["Every answer lies inside the measured range."]
    listed = [answer for answer in weak[:LISTED] if answer.step_us >= SMALLEST_LISTED * step_us]
    lines = ["Not interpolated between measurements (share of the step on the stage where it is largest):"]
    for answer in listed:
        name = f"{answer.operator.removesuffix(BY_BYTES)} {answer.direction}"
        if answer.operator.endswith(BY_BYTES):
            name += ", by bytes"
        if answer.source is Source.ANALYTIC:
            how = "analytic"
        elif answer.outside == "operator":
            how = f"not measured; transferred from {answer.donor}"
        elif answer.factor is None:
            what = "nodes × GPUs per node" if answer.outside == "topology" else f"a value of {answer.outside}"
            how = f"{what} not measured"
        else:
            how = f"{answer.outside} {answer.factor:.3g} × outside the measured range"
        lines.append(f"  {answer.step_us / step_us:6.1%}  {name}: {how}")
    if len(weak) > len(listed):
        lines.append(f"  and {len(weak) - len(listed)} more, each smaller; --json lists all")
    return lines


def _data_parallel(parts: StageParts, step_us: float) -> str:
    total, exposed = parts.data_parallel_us, parts.data_parallel_us - parts.data_parallel_hidden_us
    return (
        f"Data-parallel traffic: {milliseconds(total, step_us)} ms, {milliseconds(exposed, step_us)} ms of it exposed "
        f"({exposed / step_us:.1%} of the step)."
    )


def wrapped(lines: list[str], width: int, indent: int) -> list[str]:
    """Break lines that are longer than the output."""
    broken = TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in broken.wrap(line) or [""]]


def render(prediction: Prediction, loaded: Loaded, width: int = 100) -> str:
    """Return a prediction as a page of text; where it does not fit, that stands before the time.

    Its table is wider than ``width`` only where that of a single stage is.
    """
    answered = answers(prediction, loaded.system)
    parts = stage_parts(prediction)
    critical = parts[prediction.critical_stage]
    stages, below = stage_table(prediction, parts, width)
    if prediction.run.layout.data_parallel_size > 1:
        below.append(_data_parallel(critical, critical.step_us))
    waited = slowest_rank(prediction, loaded.system)
    if waited.slowdown > 1.0:
        below.append(
            f"Slowest of {waited.ranks:,} GPUs: computing takes {waited.slowdown - 1.0:.1%} longer than on the median "
            f"one, {milliseconds(waited.time_us, critical.step_us)} ms of the step."
        )
    below += ["", *foundations(prediction.step.us, answered)]
    below += [f"Note: {note}" for note in notes(prediction, loaded, answered)]
    table = ["", "Where the step goes", *stages]
    titled = {name: f"{name.ljust(len(TITLE))}{text}" for name, text in header_rows(prediction, loaded).items()}
    doubtful = fullest_verdict(prediction, loaded.system) in (MemoryVerdict.MAY_NOT_FIT, MemoryVerdict.DOES_NOT_FIT)
    first = [titled.pop("Memory"), ""] if doubtful else []
    indented = [" " * len(TITLE) + sentence for sentence in headline(prediction, loaded.system)]
    first += [titled.pop("Step time"), *indented, *([] if doubtful else [""])]
    header = wrapped([*first, *titled.values()], width, len(TITLE))
    return "\n".join([*header, *table, *wrapped(below, width, 6)])
