"""Sizes that each pipeline schedule supports."""

from __future__ import annotations

from predictor.core.timeline.schedules import SCHEDULES, V_CHUNKS


def check(name: str, num_stages: int, num_micro_batches: int, num_chunks: int) -> str | None:
    """Return the rule that sizes break, as a sentence without its subject; None where they break none."""
    if not SCHEDULES[name].chunks:
        return None if num_chunks == 1 else "holds one model chunk per stage; interleaved_1f1b takes several"
    if num_chunks < 2:
        return "needs at least 2 model chunks per stage; with one it is 1f1b"
    if num_stages < 2:
        return "needs at least 2 pipeline stages"
    if SCHEDULES[name].v_shaped:
        return _check_v(SCHEDULES[name].least_micro_batches * num_stages, num_micro_batches, num_chunks)
    if SCHEDULES[name].all_forward:
        return None
    return _check_groups(SCHEDULES[name].group or num_stages, num_stages, num_micro_batches)


def _check_groups(group: int, num_stages: int, num_micro_batches: int) -> str | None:
    """Return the rule of groups of micro-batches that sizes break; None where they break none.

    Source: Megatron-LM core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving.
    """
    left = num_micro_batches % group
    if group == num_stages and left:
        lower = num_micro_batches - left
        tries = f"{lower} or {lower + num_stages}" if lower else f"{num_stages}"
        return f"needs a multiple of pipeline_parallel_size ({num_stages}) micro-batches. Try {tries}"
    if not num_stages <= group <= num_micro_batches:
        return (
            f"runs micro_batch_group_size {group}; it must be between pipeline_parallel_size, {num_stages}, and the "
            f"micro-batches of a step, {num_micro_batches}"
        )
    if 0 < left < num_stages:
        return (
            f"has {left} of {num_micro_batches} micro-batches in its last group of {group} (micro_batch_group_size); "
            f"it must have none, or at least pipeline_parallel_size, {num_stages}"
        )
    return None


def _check_v(least: int, num_micro_batches: int, num_chunks: int) -> str | None:
    """Return the rule of V-shaped schedules that sizes break; None where they break none."""
    if num_chunks != V_CHUNKS:
        return f"holds {V_CHUNKS} model chunks per stage (virtual_pipeline_parallel_size), not {num_chunks}"
    if num_micro_batches < least:
        return f"needs at least twice as many micro-batches as pipeline stages, {least}"
    return None
