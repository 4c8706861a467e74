"""Split layers over pipeline stages as frameworks do."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.core.base.errors import ConfigError

METHODS = ("uniform", "gpt_neox")


def uniform(num_layers: int, stages: int) -> list[int]:
    """Spread layers evenly; the first stages take one more where they do not divide (Megatron-LM asks that they do)."""
    share, rest = divmod(num_layers, stages)
    return [share + (stage < rest) for stage in range(stages)]


def gpt_neox(num_layers: int, stages: int) -> list[int]:
    """Split as GPT-NeoX on DeepSpeed does with its default ``pipe_partition_method`` "type:transformer|mlp".

    The pattern also matches the two functions before and after the layers, so ``num_layers + 2`` units of equal weight
    are shared out, every stage but the last filled to the smallest sufficient number. 32 layers over 4 stages give 8,
    9, 9, 6; 44 give 11, 12, 12, 9.

    Source: DeepSpeed ``runtime/pipe/module.py`` and ``partition_balanced`` in ``runtime/utils.py`` before 0.11.
    """
    units = num_layers + 2
    per_stage = -(-units // stages)
    filled = [max(0, min(per_stage, units - stage * per_stage)) for stage in range(stages)]
    filled[0] -= 1
    filled[-1] -= 1
    return filled if min(filled) >= 1 else uniform(num_layers, stages)


def chunk_layers(layers_per_stage: Sequence[int], stage: int, num_chunks: int, least: int = 0) -> tuple[int, ...]:
    """Return the layers of each chunk of a stage.

    The first stage's first chunk and the last stage's last one may hold fewer than the others, or none: Megatron-LM
    counts the embedding and the loss as layers there (--account-for-embedding-in-pipeline-split, --account-for-loss-…).

    Raises:
        ConfigError: another stage's layers do not divide, or one of these two chunks would hold fewer than ``least``.

    >>> chunk_layers([15, 16, 16, 15], 0, 8)
    (1, 2, 2, 2, 2, 2, 2, 2)
    >>> chunk_layers([7, 8, 8, 7], 3, 8)
    (1, 1, 1, 1, 1, 1, 1, 0)
    """
    layers = layers_per_stage[stage]
    share, rest = divmod(layers, num_chunks)
    if not rest:
        return (share,) * num_chunks
    whole = (share + 1,) * (num_chunks - 1)
    short = layers - sum(whole)
    if short >= least and stage == 0:
        return (short, *whole)
    if short >= least and stage == len(layers_per_stage) - 1:
        return (*whole, short)
    raise ConfigError(
        f"virtual_pipeline_parallel_size is {num_chunks}; it must divide the layers of every stage, "
        f"{list(layers_per_stage)}, where only the first and the last chunk of all may hold fewer than the others. "
        "Give layers_per_stage a list per stage and chunk, or set embedding_counts_as_layer and loss_counts_as_layer "
        "where the model's ends count as layers (Llama 3: 126 layers on 16 stages of 8 chunks)"
    )


def split_layers(method: str | list[int], num_layers: int, stages: int) -> list[int]:
    """Return layers per stage, by a method's name or as given.

    Raises:
        ConfigError: more stages than layers, or a given split that does not add up.
    """
    if stages > num_layers:
        raise ConfigError(
            f"pipeline_parallel_size (pp) is {stages} but the model has {num_layers} layers (encoders); "
            "every stage needs one"
        )
    if isinstance(method, str):
        return {"uniform": uniform, "gpt_neox": gpt_neox}[method](num_layers, stages)
    if len(method) != stages or sum(method) != num_layers or min(method) < 1:
        raise ConfigError(
            f"layers_per_stage is {method}; it needs {stages} positive numbers (pipeline_parallel_size) that add up to "
            f"{num_layers} (num_layers)"
        )
    return list(method)
