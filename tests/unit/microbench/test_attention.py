"""Attention with fewer key-value heads or a window computes what plain attention over repeated, masked keys does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from microbench.call import Maker
from microbench.kernels import grouped_query_attention
from microbench.sweep import read_sweep, shapes_of, sweep_names

BATCH, LENGTH, WIDTH = 2, 96, 32
SHAPE_NAMES = ("batch", "sequence", "heads", "kv_heads", "head_dim", "causal", "window")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")


def plain_attention(torch: Any, inputs: tuple[Any, ...], causal: bool, window: int) -> Any:
    """Return softmax(QKᵀ/√d)V with every key-value head repeated, written out."""
    queries, keys, values = (x.transpose(1, 2) for x in inputs)
    group = queries.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(WIDTH)
    at = torch.arange(LENGTH, device=scores.device)
    behind = at[:, None] - at
    hidden = torch.zeros_like(behind, dtype=torch.bool)
    if causal:
        hidden |= behind < 0
    if window:
        hidden |= behind >= window
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ values


@pytest.mark.parametrize(
    ("heads", "kv_heads", "causal", "window"),
    [
        (4, 4, 1, 0),
        (4, 2, 1, 0),
        (6, 2, 0, 0),
        (4, 1, 1, 0),
        (4, 2, 1, 32),
        (4, 4, 1, 1),
        (4, 2, 1, LENGTH),
        (2, 1, 1, 500),
    ],
)
def test_it_is_attention_over_repeated_heads(torch: Any, heads: int, kv_heads: int, causal: int, window: int) -> None:
    torch.manual_seed(0)
    shape = (BATCH, LENGTH, heads, kv_heads, WIDTH, causal, window)
    call = grouped_query_attention.build(shape, Maker("cpu", "fp32"))
    assert [x.shape[2] for x in call.inputs] == [heads, kv_heads, kv_heads]
    ours, plain = call.forward(), plain_attention(torch, call.inputs, bool(causal), window)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    entering = torch.randn_like(plain)
    gradients = (torch.autograd.grad(output, call.inputs, entering) for output in (ours, plain))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def test_the_kernel_that_ran_is_recorded(torch: Any) -> None:
    def kernel(window: int) -> str:
        return grouped_query_attention.build((1, 64, 2, 1, 32, 1, window), Maker("cpu", "fp32")).kernel

    assert kernel(0) == kernel(64) == "torch scaled_dot_product_attention, flash backend"
    assert kernel(16) == "torch scaled_dot_product_attention, flash backend, window as a mask"


def test_flash_attn_gets_fewer_heads_and_the_window(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def flash(queries: Any, keys: Any, values: Any, **options: Any) -> Any:
        seen.append(options | {"kv_heads": keys.shape[2]})
        return queries

    monkeypatch.setattr(grouped_query_attention, "packaged_function", lambda make: flash)
    for window in (0, 16, 64):
        call = grouped_query_attention.build((1, 64, 4, 2, 32, 1, window), Maker("cpu", "fp32"))
        call.forward()
        assert call.kernel == "flash-attn"
    assert seen == [{"causal": True, "window_size": sees, "kv_heads": 2} for sees in ((-1, -1), (15, 0), (-1, -1))]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 64, 4, 3, 32, 1, 0), "kv_heads is 3; it must divide heads, 4"),
        ((1, 64, 2, 4, 32, 1, 0), "kv_heads is 4; it must divide heads, 2"),
        ((1, 64, 4, 2, 32, 0, 16), "window is 16 without causal"),
    ],
)
def test_what_is_no_attention_is_refused(torch: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grouped_query_attention.build(shape, Maker("cpu", "fp32"))


@pytest.mark.parametrize("name", sweep_names())
def test_every_sampled_group_is_whole_and_every_window_causal(name: str) -> None:
    sweep = read_sweep(name).model_copy(update={"shapes_per_operator": 300})
    sampled = [
        dict(zip(SHAPE_NAMES, shape, strict=True)) for shape in shapes_of("grouped_query_attention", sweep, "fp16")
    ]
    assert all(call["kv_heads"] >= 1 and call["heads"] % call["kv_heads"] == 0 for call in sampled)
    assert all(call["causal"] for call in sampled if call["window"])
    groups = {call["heads"] // call["kv_heads"] for call in sampled}
    assert groups >= set(sweep.models.queries_per_key_value_head)
    assert {call["window"] for call in sampled} == set(sweep.models.sliding_window)
