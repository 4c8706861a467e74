"""Scans in chunks equal the recurrences that they compute, one token after the other."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from microbench.kernels.gated_delta_rule import rule  # noqa: E402
from microbench.kernels.ssd_scan import scan  # noqa: E402


@pytest.mark.parametrize(("length", "chunk"), [(12, 4), (13, 4), (3, 8)])
def test_scan_in_chunks(length: int, chunk: int) -> None:
    torch.manual_seed(0)
    x, log_decay = torch.randn(2, length, 4, 3), -torch.rand(2, length, 4)
    keys, queries = torch.randn(2, length, 2, 5), torch.randn(2, length, 2, 5)
    state, expected = torch.zeros(2, 4, 3, 5), []
    for token in range(length):
        key, query = (t[:, token].repeat_interleave(2, 1) for t in (keys, queries))
        state = state * log_decay[:, token, :, None, None].exp() + x[:, token, :, :, None] * key[:, :, None]
        expected.append((state * query[:, :, None]).sum(-1))
    torch.testing.assert_close(scan(x, log_decay, keys, queries, chunk), torch.stack(expected, 1))


@pytest.mark.parametrize(("length", "chunk"), [(12, 4), (13, 4), (3, 8)])
def test_gated_delta_rule_in_chunks(length: int, chunk: int) -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(2, length, 4, 5), torch.nn.functional.normalize(torch.randn(2, length, 4, 5), dim=-1)
    values, log_decay, strength = torch.randn(2, length, 4, 3), -torch.rand(2, length, 4), torch.rand(2, length, 4)
    state, expected = torch.zeros(2, 4, 5, 3), []
    for token in range(length):
        key, query = keys[:, token, :, :, None], queries[:, token, :, :, None]
        state = state * log_decay[:, token, :, None, None].exp()
        error = values[:, token] - (state * key).sum(2)
        state = state + key * (strength[:, token, :, None] * error)[:, :, None]
        expected.append((state * query).sum(2))
    actual = rule(queries, keys, values, log_decay, strength, chunk)
    torch.testing.assert_close(actual, torch.stack(expected, 1), rtol=1e-4, atol=1e-5)
