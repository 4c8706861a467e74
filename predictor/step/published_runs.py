"""A note on how accurate predictions of similar published runs were, where the model is known to be off."""

from __future__ import annotations

from predictor.costs.folder import OPERATOR_FOLDER
from predictor.costs.published import PublishedSystem
from predictor.workloads.run import TrainingRun

SHARDS_GRADIENTS = 2  # the ZeRO stage from which on ranks hold a share of the gradients


def _hides_sharded_traffic(run: TrainingRun) -> bool:
    """Return whether gradients or weights are shared out and travel beside computing."""
    overlaps = run.overlap_gradient_reduction or run.overlap_parameter_gather
    return run.zero_stage >= SHARDS_GRADIENTS and overlaps and run.layout.gradient_ranks > 1


def published_runs_note(run: TrainingRun, system: PublishedSystem) -> str | None:
    """Return the error of predictions of published runs of this kind, on the same GPU where there are any.

    Two kinds have such runs: sharded ones with hidden traffic, and all on a system known from a data sheet, which has a
    donor and no operators of its own. A run of both kinds gets the note of the sharded ones, whose errors are larger.
    None for every other run.
    """
    sharded = _hides_sharded_traffic(run)
    measured = system.hardware.transfer is None or system.files.names(OPERATOR_FOLDER)
    if measured and not sharded:
        return None
    from predictor.step.published_groups import published_runs  # most predictions need none of it

    kind = "with ZeRO-2/3 or FSDP and traffic beside computing" if sharded else "on systems known from a data sheet"
    groups = published_runs().sharded if sharded else published_runs().data_sheet
    same_chip = [group for group in groups if system.gpu in group.gpus]
    where = "" if same_chip else f", none of them on the {system.gpu}"
    errors = "; ".join(group.summary for group in same_chip or groups)
    return f"Published runs {kind}{where}: predicted steps were on average {errors}."
