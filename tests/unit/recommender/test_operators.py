"""Operators of recommenders: work by hand, what stands in for them, and kernels that compute what they should."""

from __future__ import annotations

from math import log

import pytest

from microbench.errors import MeasureError
from microbench.kernels import kernel, kernel_names, of_recommenders
from microbench.lookups import slots_of
from microbench.recommender_call import RecommenderCall
from microbench.sweep import measured_by, read_sweep, shapes_of
from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import PublishedError
from predictor.core.costs import host_copy
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.operators.dot_interaction import output_width
from predictor.core.costs.published import PublishedSystem, open_system, with_hardware
from predictor.core.costs.stream_stand_ins import DONOR_PASSES, scattered_rows, streamed
from predictor.core.costs.work import ELEMENT_BYTES

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
SYSTEMS = sorted(path.parent.name for path in REGRESSORS_FOLDER.glob("*/manifest.json"))
# A rank's share of DLRM on Criteo's data: 26 slots, 8,192 samples.
OF_RECOMMENDERS = [name for name in kernel_names() if of_recommenders(name)]
SHAPES: dict[str, Shape] = {
    "batch_norm": (8192, 1024),
    "cross_layer": (8192, 429),
    "dot_interaction": (8192, 27, 128),
    "dropout": (8192 * 1024,),
    "embedding_bag": (212_992, 212_992, 150_000, 128),
    "embedding_update": (212_992, 150_000, 128, 1),
    "fm_order2": (8192, 26, 16),
    "host_to_device": (8192 * 160,),
    "kjt_permute": (26, 212_992),
    "mlp_linear": (8192, 479, 1024),
    "relu": (8192 * 1024,),
    "tensor_copy": (8192 * 479,),
}
# Twice as many samples, of the same width.
LARGER = {name: (2 * shape[0], *shape[1:]) for name, shape in SHAPES.items()} | {
    "embedding_bag": (425_984, 425_984, 280_000, 128),
    "embedding_update": (425_984, 280_000, 128, 1),
    "kjt_permute": (26, 425_984),
}


def operator(name: str) -> Operator:
    return catalogue()[name]


def opened(name: str) -> PublishedSystem:
    return open_system(REGRESSORS_FOLDER / name, "fp16")


def test_every_operator_of_the_sweep_has_a_shape_here() -> None:
    assert set(OF_RECOMMENDERS) == set(SHAPES)


@pytest.mark.parametrize(
    ("name", "shape", "direction", "size_bytes"),
    [
        # 2 rows of 3 numbers read, 4 vectors of them written, 5 keys and 4 offsets of 8 bytes.
        ("embedding_bag", (4, 5, 2, 3), FORWARD, (2 + 4) * 3 * 4 + (5 + 4) * 8),
        # 5 gradients and keys read; 2 rows and Adam's two states read and written.
        ("embedding_update", (5, 2, 3, 2), FORWARD, 5 * (3 * 4 + 8) + 2 * 3 * 4 * 2 * 3),
        # 2 samples of 3 vectors of 4 numbers; the first vector and 3 pairs written.
        ("dot_interaction", (2, 3, 4), FORWARD, (2 * 3 * 4 + 2 * (4 + 3)) * 2),
        ("dot_interaction", (2, 3, 4), BACKWARD, (2 * 2 * 3 * 4 + 2 * (4 + 3)) * 2),
        ("fm_order2", (2, 3, 4), FORWARD, (2 * 3 * 4 + 2 * 4) * 2),
        ("fm_order2", (2, 3, 4), BACKWARD, (2 * 2 * 3 * 4 + 2 * 4) * 2),
        ("cross_layer", (2, 4), FORWARD, 3 * 8 * 2),
        ("batch_norm", (2, 4), FORWARD, 3 * 8 * 2),
        ("mlp_linear", (2, 3, 4), FORWARD, (6 + 12 + 8) * 2),
        ("mlp_linear", (2, 3, 4), BACKWARD, (2 * (6 + 12 + 8) + 8) * 2),
        ("kjt_permute", (2, 10), FORWARD, 160),
        ("host_to_device", (77,), FORWARD, 77),
    ],
)
def test_bytes_are_those_counted_by_hand(name: str, shape: Shape, direction: Direction, size_bytes: int) -> None:
    assert operator(name).work(shape, direction, 1).size_bytes == size_bytes


def test_pairs_take_a_product_each() -> None:
    assert operator("dot_interaction").work((2, 3, 4), FORWARD, 1).flops == 2 * 3 * (2 * 4)
    assert output_width(27, 128) == 128 + 351


@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_that_never_measured_them_answer_and_say_so(system: str) -> None:
    published = opened(system)
    for name, shape in SHAPES.items():
        for direction in operator(name).directions:
            cost = published.cost(operator(name), direction, shape)
            assert 0.0 < cost.low_us < cost.us < cost.high_us, name
            assert cost.source >= Source.EXTRAPOLATED, name
            outside = published.outside(operator(name), direction, shape)
            assert outside is not None
            assert outside.dimension == "operator"
            more = published.cost(operator(name), direction, LARGER[name])
            assert more.us >= cost.us, name  # as long where the kernels alone last longer


@pytest.mark.parametrize("size_bytes", [600.0, 1e4, 1e6, 1e8, 1e10])
def test_a_donor_streams_the_same_bytes(size_bytes: float) -> None:
    donor = streamed(size_bytes)
    work = operator(donor.operator).work(donor.shape, FORWARD, 1)
    assert donor.times * work.size_bytes == pytest.approx(max(size_bytes, DONOR_PASSES * ELEMENT_BYTES))
    assert donor.times == pytest.approx(1.0, rel=0.01)


def test_narrow_rows_take_longer_and_scattered_rows_are_less_certain() -> None:
    published, bag = opened("Selene"), operator("embedding_bag")
    # As many bytes in eight times as many rows; keys alone are 8 of 64 bytes.
    wide = published.cost(bag, FORWARD, (100_000, 100_000, 100_000, 128))
    narrow = published.cost(bag, FORWARD, (800_000, 800_000, 800_000, 16))
    assert narrow.us > 1.3 * wide.us
    copy = published.cost(operator("tensor_copy"), FORWARD, (20_000_000,))
    assert log(wide.high_us / wide.us) > log(copy.high_us / copy.us) + 0.1
    assert scattered_rows(16) > scattered_rows(64) > scattered_rows(256) == 1.0


def test_repeated_rows_cost_less_than_different_ones() -> None:
    published, bag = opened("H100"), operator("embedding_bag")
    repeated = published.cost(bag, FORWARD, (65_536, 6_553_600, 1_000, 128))
    different = published.cost(bag, FORWARD, (65_536, 6_553_600, 6_000_000, 128))
    assert repeated.us < 0.5 * different.us


def test_bytes_of_fp32_rows_are_the_same_in_every_precision() -> None:
    for name in ("embedding_bag", "embedding_update", "kjt_permute", "host_to_device"):
        assert {operator(name).byte_scale(precision) for precision in ("fp16", "bf16", "fp32")} == {1.0}
    assert operator("relu").byte_scale("fp32") == 2.0


def test_the_hosts_link_decides_a_copy() -> None:
    published = opened("H100")
    copy, shape = operator("host_to_device"), (63_000_000,)
    cost = published.cost(copy, FORWARD, shape)
    assert cost.low_us == pytest.approx(1000.0)  # 63 MB at 63 GB/s
    assert cost.us == pytest.approx(1000.0 / host_copy.EFFICIENCY)
    assert cost.source is Source.ANALYTIC
    links = published.hardware.links.model_copy(update={"host_gb_per_s": None})
    unknown = with_hardware(published, published.hardware.model_copy(update={"links": links}))
    with pytest.raises(PublishedError, match="no fp16 regressor for host_to_device"):
        unknown.cost(copy, FORWARD, shape)


def test_shapes_of_one_recommender() -> None:
    call = RecommenderCall(512, 26, 2, 1000, 0.0, 64, 13, 256, 2, 8)
    shape = {name: kernel(name).of_recommender(call) for name in OF_RECOMMENDERS}
    bags, lookups, rows, width = shape["embedding_bag"]
    assert (bags, lookups, width) == (512 * 26, 2 * 512 * 26, 64)
    assert rows == round(26 * 1000 * (1 - (1 - 1 / 1000) ** 1024))
    assert shape["embedding_update"] == (lookups, rows, 64, 2)
    assert shape["dot_interaction"] == (512, 27, 64)
    assert shape["cross_layer"] == (512, 13 + 26 * 64)
    assert shape["host_to_device"] == (512 * (14 * 4 + 26 * 2 * 8),)


def test_lookups_of_a_sweep_touch_no_more_rows_than_there_are() -> None:
    for name in ("smoke", "standard", "full", "recommender"):
        for bags, lookups, rows, _ in shapes_of("embedding_bag", read_sweep(name), "fp32"):
            assert rows <= lookups
            assert bags <= lookups


def test_a_sweep_without_recommenders_says_so_and_leaves_them_out() -> None:
    sweep = read_sweep("smoke").model_copy(update={"recommenders": None})
    assert set(measured_by(sweep)) == set(catalogue()) - set(OF_RECOMMENDERS)
    with pytest.raises(MeasureError, match="embedding_bag: the sweep has no section recommenders"):
        shapes_of("embedding_bag", sweep, "fp32")


def test_the_recommenders_sweep_measures_them_and_what_goes_with_them() -> None:
    names = measured_by(read_sweep("recommender"))
    assert set(OF_RECOMMENDERS) <= set(names)
    assert "flash_attention" not in names


def test_slots_divide_the_bags() -> None:
    assert all(bags % slots_of(bags) == 0 for bags in range(1, 200))
