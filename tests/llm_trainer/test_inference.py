"""What optimisation changes (nothing, but for int8: little), and what a benchmark reports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from llm_trainer.config import ModelConfig
from llm_trainer.exceptions import GenerationError
from llm_trainer.models import TransformerLM
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.utils.generation import GenerationConfig, TextGenerator
from llm_trainer.utils.inference import InferenceEngine, Int8Linear, quantized

PROMPTS = ["the cat", "the dog sat on", ""]


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    trained = BPETokenizer()
    trained.train(["the cat sat on the mat. the dog sat."], vocab_size=270)
    return trained


@pytest.fixture
def model(tokenizer: BPETokenizer) -> TransformerLM:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, d_model=32, n_heads=4, n_layers=1, d_ff=64, max_seq_len=48, init_std=0.3
    )
    return TransformerLM(config)


def test_an_engine_answers_as_a_generator(model: TransformerLM, tokenizer: BPETokenizer) -> None:
    engine, generator = InferenceEngine(model, tokenizer), TextGenerator(model, tokenizer)
    assert engine.infer("the cat") == generator.generate("the cat")
    prompt, added = generator.continue_prompts(["the cat"], GenerationConfig(max_length=20))[0]
    assert len(prompt) + len(added) == 20 or added[-1] == tokenizer.eos_token_id
    assert engine.infer("the cat", max_length=20) == tokenizer.decode(prompt + added)
    assert engine.batch_infer(PROMPTS, max_length=30) == [engine.infer(prompt, max_length=30) for prompt in PROMPTS]
    assert engine.infer("the", do_sample=True, seed=1) == engine.infer("the", do_sample=True, seed=1)


def test_the_cache_and_the_compiler_change_no_answer(model: TransformerLM, tokenizer: BPETokenizer) -> None:
    engine = InferenceEngine(model, tokenizer)
    expected = engine.batch_infer(PROMPTS, max_length=30)
    for options in ({"compile_model": False, "enable_kv_cache": False}, {"backend": "eager"}, {"compile_model": False}):
        engine.optimize(**options)
        assert engine.batch_infer(PROMPTS, max_length=30) == expected


def test_a_compiled_model_is_compiled_once_for_all_lengths(model: TransformerLM, tokenizer: BPETokenizer) -> None:
    torch._dynamo.reset()
    counted: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        counted.append(graph)
        return graph.forward

    engine = InferenceEngine(model, tokenizer)
    expected = engine.infer("the cat sat", max_length=48)
    engine.optimize(backend=backend)  # type: ignore[arg-type]
    assert engine.infer("the cat sat", max_length=48) == expected
    assert engine.infer("the dog", max_length=30)
    assert 2 <= len(counted) <= 4  # the prompt and the tokens after it, for sizes that vary


def test_a_compiler_that_fails_is_one_line(model: TransformerLM, tokenizer: BPETokenizer) -> None:
    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        raise RuntimeError("no\ncompiler")

    engine = InferenceEngine(model, tokenizer)
    expected = engine.infer("the cat")
    with pytest.raises(GenerationError, match="Set compile_model to False") as raised:
        engine.optimize(backend=backend)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    assert engine.infer("the cat") == expected


@pytest.mark.parametrize("has_bias", [True, False])
def test_an_int8_layer_is_within_its_rounding(has_bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 48, bias=has_bias)
    hidden = torch.randn(3, 5, 64)
    layer = Int8Linear(linear)
    with torch.no_grad():
        exact, ours = linear(hidden), layer(hidden)
    # Each factor is off by at most half a step: |Σ(x + a)(w + b) - Σxw| ≤ Σ(|x| |b| + |w| |a| + |a| |b|).
    step_x, step_w = hidden.abs().amax(-1, keepdim=True) / 127, linear.weight.abs().amax(1) / 127
    bound = (
        hidden.abs().sum(-1, keepdim=True) * step_w / 2
        + linear.weight.abs().sum(1) * step_x / 2
        + 64 * step_x * step_w / 4
    )
    assert bool(((exact - ours).abs() <= bound + 1e-5).all())
    assert float((exact - ours).abs().max()) > 0
    assert ours.dtype == hidden.dtype
    assert layer(torch.zeros(2, 64)).allclose(linear(torch.zeros(2, 64)))


def test_a_quantised_model_answers_nearly_alike_and_leaves_the_model(
    model: TransformerLM, tokenizer: BPETokenizer
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.randint(model.config.vocab_size, (4, 40))
    small = quantized(model.eval())
    with torch.no_grad():
        exact, ours = model(ids).logits, small(ids).logits
    assert float((exact - ours).norm() / exact.norm()) < 0.05
    assert not any(isinstance(module, nn.Linear) for module in small.modules())
    layers = [module for module in small.modules() if isinstance(module, Int8Linear)]
    assert len(layers) == 4 + 1
    assert {layer.weight.dtype for layer in layers} == {torch.int8}
    assert all(value.equal(model.state_dict()[name]) for name, value in before.items())
    engine = InferenceEngine(model, tokenizer)
    engine.optimize(compile_model=False, quantize=True)
    assert engine.batch_infer(PROMPTS, max_length=30) == [engine.infer(prompt, max_length=30) for prompt in PROMPTS]
    assert next(iter(model.layers.values())).ffn.up.weight.dtype == torch.float32


def test_a_benchmark_reports_its_samples(model: TransformerLM, tokenizer: BPETokenizer) -> None:
    result = InferenceEngine(model, tokenizer).benchmark(PROMPTS, num_runs=3, max_new_tokens=4)
    latencies = result["latencies_s"]
    assert (result["num_runs"], result["num_prompts"], len(latencies)) == (3, 3, 9)
    assert min(latencies) > 0
    assert result["median_latency_s"] == sorted(latencies)[4]
    assert result["p99_latency_s"] == pytest.approx(np.percentile(latencies, 99))
    assert set(result["new_tokens"]) <= {1, 2, 3, 4}
    assert result["tokens_per_second"] == pytest.approx(sum(result["new_tokens"]) / sum(latencies))


def test_bad_values_are_one_line(model: TransformerLM, tokenizer: BPETokenizer) -> None:
    engine = InferenceEngine(model, tokenizer)
    for arguments, message in (
        (([],), r"prompts is \[\]; expected a list of at least one prompt"),
        (("the cat",), "prompts is 'the cat'"),
        ((["x"], 0), "num_runs is 0; it must be at least 1"),
    ):
        with pytest.raises(GenerationError, match=message):
            engine.benchmark(*arguments)
    with pytest.raises(GenerationError, match="max_length is 49 tokens; max_seq_len of the model is 48"):
        engine.infer("x", max_length=49)
