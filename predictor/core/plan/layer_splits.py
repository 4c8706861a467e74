"""How frameworks spread a model's layers over pipeline stages and their chunks: the layers of every chunk, in order."""

from __future__ import annotations

from enum import Enum

from predictor.core.workload.partition import uniform


class Split(Enum):
    """How layers may be spread over pipeline stages."""

    EVEN = "layers divide over stages and chunks"
    ENDS = "layers divide, embedding and loss counted as layers where they must, or first and last stage hold fewer"
    COUNTED = "embedding and output count as a layer each; the first stages hold what is left"
    ANY = "the first stages may hold a layer more"


def in_order(split: Split, num_layers: int, stages: int, chunks: int, num_mtp_layers: int = 0) -> list[int] | None:
    """Return the layers of every chunk in the model's order; None where the framework cannot split so.

    >>> in_order(Split.ENDS, 126, 8, 1), in_order(Split.ENDS, 126, 16, 8)[:3]
    ([15, 16, 16, 16, 16, 16, 16, 15], [0, 1, 1])
    >>> in_order(Split.ENDS, 61, 8, 1), in_order(Split.ENDS, 61, 8, 1, num_mtp_layers=1)
    ([7, 8, 8, 8, 8, 8, 8, 6], [8, 8, 8, 8, 8, 8, 8, 5])
    >>> in_order(Split.COUNTED, 32, 4, 1)
    [8, 9, 8, 7]
    """
    places = stages * chunks
    if places == 1:
        return [num_layers]
    if split is Split.COUNTED:
        return _counted(num_layers, places, stages)
    if num_layers % places == 0:
        return [num_layers // places] * places
    if split is Split.ANY and chunks == 1:
        return uniform(num_layers, stages)
    return _with_ends(num_layers, stages, chunks, num_mtp_layers) if split is Split.ENDS else None


def _with_ends(num_layers: int, stages: int, chunks: int, num_mtp_layers: int) -> list[int] | None:
    """Return Megatron-LM's split of layers that do not divide: ends that count as layers, or shorter ends.

    Ends that count may leave their chunk without a layer (Llama 3 405B on 16 stages of 8 chunks).
    """
    places = stages * chunks
    each, rest = divmod(num_layers + 2, places)
    if not rest:
        return [each - 1, *[each] * (places - 2), each - 1]
    if chunks == 1:
        return _shorter_end(num_layers, stages) if num_mtp_layers else _lighter_ends(num_layers, stages)
    if 0 in (num_layers % stages, (num_layers + 2) % stages):  # another number of chunks splits evenly
        return None
    return _shorter_end(num_layers, places)


def _shorter_end(num_layers: int, places: int) -> list[int] | None:
    """Return a split whose chunks but the first and last are full, and whose last one, with the loss, is the shortest.

    None where the ends would hold too many layers, or none. Source: NVIDIA's layouts of DeepSeek-V3 and Kimi K2,
    Megatron-Bridge src/megatron/bridge/recipes/deepseek/deepseek_v3.py, kimi/kimi_k2.py.
    """
    each = -(-num_layers // places)
    ends = num_layers - each * (places - 2)
    if not 1 <= ends < 2 * each:
        return None
    first = min(each, ends)
    return [first, *[each] * (places - 2), ends - first]


def _lighter_ends(num_layers: int, stages: int) -> list[int] | None:
    """Return a split whose first and last stage share what full stages between them leave; None where that is nothing.

    Source: Megatron-LM's --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers.
    """
    each = -(-num_layers // stages)
    rest = num_layers - each * (stages - 2)
    return [rest - rest // 2, *[each] * (stages - 2), rest // 2] if rest > 1 else None


def _counted(num_layers: int, places: int, stages: int) -> list[int] | None:
    """Return torchtitan's split; None where it names no such number of chunks, or one would be empty.

    More than two chunks a stage follow from pipeline_parallel_layers_per_stage. Source: torchtitan
    torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part, pipeline_llm.
    """
    counted = num_layers + 2
    if places > 2 * stages and -(-counted // -(-counted // places)) != places:
        return None
    each, extra = divmod(counted, places)
    split = [each + (place < extra) for place in range(places)]
    split[0] -= 1
    split[-1] -= 1
    return split if min(split) > 0 else None
