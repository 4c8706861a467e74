"""Distribution of a configuration's samples: the keys of each slot and how many of them a sample has."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hugectr.data.samples import SampleLayout, layout_of
from hugectr.data.synthetic import SampleKind
from hugectr.exceptions import HugeCtrError
from predictor.recommender.hugectr.reading import HugeCtrConfig
from predictor.recommender.hugectr.sections import Data


def data_of(config: HugeCtrConfig) -> Data:
    """Return the data layer, with the slots' sizes that the embedding layers state where it does not.

    Sizes say where each slot's keys begin, slot after slot over all sparse inputs. So all layers state them or none.

    Raises:
        HugeCtrError: some embedding layers state sizes and others do not, or two of one input state different ones.
    """
    layers = config.model.embeddings
    stating = [layer for layer in layers if layer.slot_rows]
    if config.data.slot_size_array or not stating:
        return config.data
    by_input = {layer.input: layer for layer in stating}
    way_out = "give every embedding layer its sizes, or give them to the data layer"
    for layer in layers:
        if not layer.slot_rows:
            raise HugeCtrError(
                f"layer {layer.name} has no slot_size_array, layer {stating[0].name} has, and all sizes together say "
                f"where a slot's keys begin; {way_out}"
            )
        other = by_input[layer.input]
        if layer.slot_rows != other.slot_rows:
            raise HugeCtrError(
                f"layers {layer.name} and {other.name} read {layer.input} and differ in slot_size_array; give both the "
                "same sizes"
            )
    for sparse in config.data.sparse:
        if sparse.top not in by_input:
            raise HugeCtrError(f"no embedding layer states the slot_size_array of {sparse.top}; {way_out}")
    known = tuple(size for sparse in config.data.sparse for size in by_input[sparse.top].slot_rows)
    return config.data.model_copy(update={"slot_size_array": known})


def sample_kind(config: HugeCtrConfig, vocabulary: int | None, max_nnz: int, exponent: float) -> SampleKind:
    """Return what is drawn for a configuration; the arguments are those of ``generate``.

    Raises:
        HugeCtrError: they do not go with the configuration.
    """
    data, layout = config.data, layout_of(config.data)
    if max_nnz < 1 or (max_nnz > 1 and data.format != "Norm"):
        rule = "Norm data alone have more than one key per slot" if max_nnz > 1 else "expected 1 or more"
        raise HugeCtrError(f"max_nnz is {max_nnz}; {rule}")
    for name, first, last, max_keys, limit in layout.inputs:
        if max_nnz * (last - first) > max_keys:
            raise HugeCtrError(
                f"max_nnz is {max_nnz}: {last - first} slots of {name} hold up to {max_nnz * (last - first)} keys; "
                f"max_feature_num_per_sample is {max_keys}"
            )
        if limit is not None and max_nnz > limit:
            raise HugeCtrError(f"max_nnz is {max_nnz}; {name} of the configuration has max_nnz {limit}")
    sizes = _slot_sizes(config, layout, vocabulary)
    starts = tuple(accumulate(sizes, initial=0))[:-1] if data.format == "Norm" else (0,) * len(sizes)
    counts_dense = data.format == "Raw" and not data.float_label_dense
    return SampleKind(layout, sizes, starts, max_nnz, exponent, counts_dense)


def _slot_sizes(config: HugeCtrConfig, layout: SampleLayout, vocabulary: int | None) -> tuple[int, ...]:
    known = data_of(config).slot_size_array
    if known:
        if vocabulary is not None and vocabulary != sum(known):
            raise HugeCtrError(
                f"vocabulary is {vocabulary}; slot_size_array of the configuration has {sum(known)} keys"
            )
        return known
    if vocabulary is None:
        raise HugeCtrError("vocabulary is missing; the configuration has no slot_size_array")
    if vocabulary < layout.num_slots:
        raise HugeCtrError(f"vocabulary is {vocabulary}; {layout.num_slots} slots need a key each")
    ends = [vocabulary * slot // layout.num_slots for slot in range(layout.num_slots + 1)]
    sizes = tuple(end - start for start, end in pairwise(ends))
    num_gpus = 1 if config.solver is None else sum(map(len, config.solver.gpu))
    ranges = {part.name: part for part in layout.inputs}
    for embedding in config.model.embeddings:
        part = ranges[embedding.input]
        keys, room = sum(sizes[part.first : part.last]), embedding.rows_per_gpu * num_gpus
        if keys > room:
            raise HugeCtrError(
                f"vocabulary is {vocabulary}, {keys} keys in the slots of {part.name}; max_vocabulary_size_per_gpu of "
                f"{embedding.name} has room for {room} on {num_gpus} GPUs"
            )
    return sizes
