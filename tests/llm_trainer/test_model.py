"""The transformer is causal, and padding, caching, recomputation and stages change no result of it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from llm_trainer.config import ModelConfig
from llm_trainer.exceptions import GenerationError, ModelConfigurationError
from llm_trainer.models import KVCache, ModelOutput, TransformerLM
from model_training_framework.trainer.operator_scopes import PREFIX, operator, recording

VOCABULARY, LENGTH = 61, 24
GPT2: dict[str, Any] = {"position_encoding": "learned", "activation": "gelu_tanh"}
LLAMA: dict[str, Any] = {
    "position_encoding": "rope",
    "norm": "rms_norm",
    "activation": "swiglu",
    "n_kv_heads": 2,
    "use_bias": False,
    "tie_word_embeddings": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "documented": {},
    "gpt2": GPT2,
    "llama": LLAMA,
    "post_norm": {"pre_norm": False, "activation": "relu"},
    "one_kv_head": {"n_kv_heads": 1, "position_encoding": "rope", "activation": "geglu", "norm": "rms_norm"},
    "no_bias": {"use_bias": False, "activation": "silu", "use_learned_pos_emb": True, "tie_word_embeddings": False},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def config_of(kind: str = "documented", **changes: Any) -> ModelConfig:
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "n_heads": 4, "n_layers": 3, "d_ff": 48, "max_seq_len": LENGTH}
    return ModelConfig(**{**sizes, "dropout": 0.0, "attention_dropout": 0.0, **KINDS[kind], **changes})


def model_of(kind: str = "documented", **changes: Any) -> TransformerLM:
    torch.manual_seed(0)
    model = TransformerLM(config_of(kind, **changes))
    model.eval()
    return model


def tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


@kinds
def test_the_configuration_counts_the_model_s_parameters(kind: str) -> None:
    model = model_of(kind)
    assert model.get_num_params() == model.config.num_parameters == sum(p.numel() for p in set(model.parameters()))
    buffers = sum(buffer.numel() for buffer in model.buffers())
    assert model.get_model_size_mb() == pytest.approx(4e-6 * (model.get_num_params() + buffers))


@kinds
def test_a_token_changes_no_logit_before_it(kind: str) -> None:
    model, input_ids = model_of(kind), tokens()
    changed = input_ids.clone()
    changed[:, 10] = (changed[:, 10] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model(input_ids).logits, model(changed).logits
    torch.testing.assert_close(after[:, :10], before[:, :10])
    assert (after[:, 10:] - before[:, 10:]).abs().amax(dim=(0, 2)).min() > 1e-6


@kinds
def test_positions_matter(kind: str) -> None:
    model = model_of(kind)
    with torch.no_grad():
        logits = model(torch.tensor([[7, 3, 7]])).logits[0]
    assert not torch.allclose(logits[0], logits[2], atol=1e-4)


def test_the_loss_is_that_of_the_next_token() -> None:
    model, input_ids = model_of(), tokens()
    labels = input_ids.clone()
    labels[0, 5:9] = -100
    output = model(input_ids, labels=labels)
    expected = functional.cross_entropy(output.logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1))
    torch.testing.assert_close(output.loss, expected)
    assert model(input_ids).loss is None


def test_the_first_loss_is_that_of_guessing() -> None:
    assert model_of()(tokens(8), labels=tokens(8)).loss.item() == pytest.approx(math.log(VOCABULARY), rel=0.05)


def test_an_output_is_read_by_attribute_by_name_and_by_place() -> None:
    output = model_of()(tokens(), labels=tokens())
    assert isinstance(output, ModelOutput)
    assert output["logits"] is output.logits is output[1]
    assert output["loss"] is output.loss is output[0]
    with pytest.raises(KeyError, match="hidden"):
        output["hidden"]


@kinds
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_logit_of_a_token(kind: str, side: str) -> None:
    model, input_ids = model_of(kind), tokens()
    kept = slice(5, None) if side == "left" else slice(None, LENGTH - 5)
    mask = torch.zeros_like(input_ids)
    mask[0, kept] = 1
    mask[1] = 1
    with torch.no_grad():
        logits = model(input_ids, attention_mask=mask).logits
        torch.testing.assert_close(logits[0, kept], model(input_ids[:1, kept]).logits[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(logits[1], model(input_ids).logits[1], atol=1e-5, rtol=0)
    assert logits.isfinite().all()


@kinds
@pytest.mark.parametrize("chunks", [(10, 1, 1, 1, 11), (1,) * LENGTH, (LENGTH,), (3, 20, 1)], ids=str)
def test_a_cache_changes_no_logit(kind: str, chunks: tuple[int, ...]) -> None:
    model, input_ids = model_of(kind), tokens()
    cache = KVCache(LENGTH)
    ends = [sum(chunks[:count]) for count in range(len(chunks) + 1)]
    with torch.no_grad():
        parts = [model(input_ids[:, start:end], cache=cache).logits for start, end in pairwise(ends)]
        torch.testing.assert_close(torch.cat(parts, 1), model(input_ids).logits, atol=1e-5, rtol=0)
    assert cache.length == LENGTH


@kinds
def test_a_cache_of_padded_texts_changes_no_logit(kind: str) -> None:
    model, input_ids = model_of(kind), tokens()
    mask = torch.ones_like(input_ids)
    mask[0, :4] = 0
    cache = KVCache(LENGTH)
    with torch.no_grad():
        whole = model(input_ids, attention_mask=mask).logits
        model(input_ids[:, :20], attention_mask=mask[:, :20], cache=cache)
        for end in range(21, LENGTH + 1):
            logits = model(input_ids[:, end - 1 : end], attention_mask=mask[:, :end], cache=cache).logits
            torch.testing.assert_close(logits[:, 0], whole[:, end - 1], atol=1e-5, rtol=0)


def test_a_cache_selects_rows_and_forgets_tokens() -> None:
    model, input_ids, cache = model_of("llama"), tokens(), KVCache(LENGTH)
    rows = torch.tensor([1, 1, 0])
    with torch.no_grad():
        model(input_ids[:, :12], cache=cache)
        cache.truncate(8)
        cache.select(rows)
        logits = model(input_ids[rows, 8:], cache=cache).logits
        torch.testing.assert_close(logits, model(input_ids).logits[rows, 8:], atol=1e-5, rtol=0)


def test_a_full_cache_and_a_long_sequence_are_one_line_each() -> None:
    model = model_of()
    with pytest.raises(GenerationError, match="the cache holds 4 tokens; 5 were given"):
        model(tokens(1, 5), cache=KVCache(4))
    with pytest.raises(ModelConfigurationError, match="the sequence has 25 tokens; max_seq_len is 24"):
        model(tokens(1, LENGTH + 1))


def gradients(model: TransformerLM) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    model.train()(tokens(), labels=tokens()).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@kinds
def test_recomputation_changes_no_gradient(kind: str, dropout: float) -> None:
    plain, checkpointed = (
        gradients(model_of(kind, dropout=dropout, gradient_checkpointing=checkpointing))
        for checkpointing in (False, True)
    )
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in plain.values())
    torch.testing.assert_close(checkpointed, plain)


def test_recomputation_keeps_fewer_activations() -> None:
    kept = []
    for checkpointing in (False, True):
        model = model_of(gradient_checkpointing=checkpointing).train()
        saved: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, saved=saved: saved.append(tensor) or tensor, lambda tensor: tensor
        ):
            model(tokens(), labels=tokens())
        kept.append(sum(tensor.numel() for tensor in saved))
    assert kept[1] < kept[0] / 2


def test_dropout_is_of_training_only() -> None:
    for rate in ("dropout", "attention_dropout"):
        model = model_of("documented", **{rate: 0.5})
        torch.testing.assert_close(model(tokens()).logits, model(tokens()).logits)
        model.train()
        assert not torch.allclose(model(tokens()).logits, model(tokens()).logits, atol=1e-3)


@kinds
def test_stages_make_the_whole_model(kind: str) -> None:
    model, input_ids = model_of(kind), tokens()
    stages = [model.stage(layers) for layers in (range(1), range(1, 2), range(2, 3))]
    hidden: Any = input_ids
    for stage in stages:
        hidden = stage(hidden)
    torch.testing.assert_close(hidden.logits, model(input_ids).logits)
    names = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
    own = dict(model.named_parameters(remove_duplicate=False))
    assert names.keys() | {"head.weight"} == own.keys()
    assert all(parameter is own[name] for name, parameter in names.items())
    absent = [[part is None for part in (stage.embed, stage.norm, stage.head)] for stage in stages]
    assert absent == [[False, True, True], [True, True, True], [True, kind == "post_norm", False]]


def test_a_stage_alone_has_its_layers() -> None:
    stage = TransformerLM(config_of("llama"), range(1, 3))
    assert list(stage.layers) == ["1", "2"]
    assert stage(torch.randn(2, 5, 32)).logits.shape == (2, 5, VOCABULARY)
    for layers in (range(2, 5), range(0), range(0, 3, 2)):
        with pytest.raises(ModelConfigurationError, match="expected consecutive ones of 3"):
            TransformerLM(config_of(), layers)


def test_weights_are_drawn_as_in_gpt2() -> None:
    model = model_of("gpt2", d_model=256, d_ff=1024, n_layers=8)
    layer = model.layers["0"]
    assert layer.ffn.up.weight.std().item() == pytest.approx(0.02, rel=0.02)
    for residual in (layer.attention.output, layer.ffn.down):
        assert residual.weight.std().item() == pytest.approx(0.02 / math.sqrt(16), rel=0.02)
        assert not residual.bias.any()


@kinds
def test_a_model_of_the_meta_device_becomes_the_same_model(kind: str) -> None:
    with torch.device("meta"):
        model = TransformerLM(config_of(kind))
    model.to_empty(device="cpu").tie_weights()
    model.init_weights()
    model.load_state_dict(model_of(kind).state_dict())
    torch.testing.assert_close(model.eval()(tokens()).logits, model_of(kind)(tokens()).logits)


def test_a_share_of_the_heads_works_by_itself() -> None:
    """What a tensor-parallel rank has: rows of whole groups, and the columns that belong to them."""
    attention = model_of("llama").layers["0"].attention
    hidden, context = (
        torch.randn(2, 5, 32),
        model_of("llama")._context(torch.arange(5)[None], None, 0, torch.float, None),
    )
    whole = attention(hidden, context)
    rows, columns = attention.qkv.weight.chunk(2), attention.output.weight.chunk(2, dim=1)
    parts = []
    for row, column in zip(rows, columns, strict=True):
        attention.qkv.weight, attention.output.weight = nn.Parameter(row), nn.Parameter(column)
        parts.append(attention(hidden, context))
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize(
    ("kind", "changes", "names"),
    [
        (
            "gpt2",
            {"dropout": 0.1},
            {"layer_norm", "gelu_tanh", "position_embedding", "hidden_dropout", "flash_attention"},
        ),
        ("llama", {}, {"rms_norm", "rope", "swiglu", "grouped_query_attention"}),
    ],
)
def test_operators_are_named_where_asked(kind: str, changes: dict[str, Any], names: set[str]) -> None:
    always = {"embedding", "qkv_projection", "context_copy", "attention_output", "residual_add"}
    always |= {"ffn_up", "ffn_down", "lm_head", "torch_cross_entropy"}
    model = model_of(kind, **changes).train()
    named = []
    for is_recording in (False, True):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            if is_recording:
                with recording():
                    model(tokens(), labels=tokens())
            else:
                model(tokens(), labels=tokens())
        named.append({event.name for event in profiler.events() if event.name.startswith(PREFIX)})
    assert named == [set(), {f"{PREFIX}{name}" for name in always | names}]
    assert operator("embedding") is operator("rope")


@kinds
def test_a_model_learns(kind: str) -> None:
    model = model_of(kind).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = model(tokens(), labels=tokens()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
