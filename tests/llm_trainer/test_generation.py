"""The cache and batches change nothing, beams equal a search of everything, and drawing follows the model."""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from llm_trainer.config import ModelConfig
from llm_trainer.exceptions import GenerationError
from llm_trainer.models import TransformerLM
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.utils.generation import GenerationConfig, TextGenerator, apply_repetition_penalty, generate_ids

KINDS = {
    "gpt-2": {"use_learned_pos_emb": True},
    "llama": {
        "position_encoding": "rope",
        "norm": "rms_norm",
        "activation": "swiglu",
        "n_kv_heads": 1,
        "use_bias": False,
    },
}


def make_model(vocab_size: int, kind: str = "gpt-2", seed: int = 0, max_seq_len: int = 64) -> TransformerLM:
    """Return a model whose weights are large, so that its choices are far apart."""
    torch.manual_seed(seed)
    config = ModelConfig(
        vocab_size=vocab_size, d_model=16, n_heads=2, n_layers=2, d_ff=32, max_seq_len=max_seq_len, init_std=0.4,
        **KINDS[kind],  # type: ignore[arg-type]
    )  # fmt: skip
    return TransformerLM(config)


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    trained = BPETokenizer()
    trained.train(["the cat sat on the mat. the dog sat."], vocab_size=280)
    return trained


def generator_of(tokenizer: BPETokenizer, kind: str = "gpt-2", max_seq_len: int = 64) -> TextGenerator:
    return TextGenerator(make_model(tokenizer.vocab_size + 5, kind, max_seq_len=max_seq_len), tokenizer)


def log_probability(model: TransformerLM, prompt: list[int], new: tuple[int, ...], penalty: float = 1.0) -> float:
    """Return the sum of log probabilities of new tokens, each from a forward pass without cache."""
    total = 0.0
    ids = list(prompt)
    for token in new:
        with torch.no_grad():
            logits = model.eval()(torch.tensor([ids])).logits[0, -1]
        total += float(apply_repetition_penalty(logits, torch.tensor(ids), penalty).log_softmax(dim=-1)[token])
        ids.append(token)
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7, "top_k": 5, "seed": 3}, {"num_beams": 3}, {"repetition_penalty": 1.5}]
)
def test_the_cache_changes_nothing(kind: str, options: dict[str, float]) -> None:
    model, prompt = make_model(30, kind), torch.tensor([[3, 7, 1], [4, 4, 9]])
    runs = [
        generate_ids(model, prompt, GenerationConfig(max_length=20, use_cache=use_cache, **options))  # type: ignore[arg-type]
        for use_cache in (True, False)
    ]
    assert runs[0].equal(runs[1])
    assert runs[0].shape == (2, 20)
    assert runs[0][:, :3].equal(prompt)


def test_greedy_takes_the_most_probable_token_each_time() -> None:
    model, ids = make_model(30), [3, 7]
    for _ in range(10):
        with torch.no_grad():
            ids.append(int(model.eval()(torch.tensor([ids])).logits[0, -1].argmax()))
    assert generate_ids(model, torch.tensor([[3, 7]]), GenerationConfig(max_length=12)).tolist() == [ids]
    assert model.generate(torch.tensor([[3, 7]]), max_length=12).tolist() == [ids]


def test_the_model_is_in_training_again_and_drops_nothing_meanwhile() -> None:
    model = make_model(30).train()
    assert model.config.dropout > 0
    first, second = (generate_ids(model, torch.tensor([[1]]), GenerationConfig(max_length=20)) for _ in range(2))
    assert first.equal(second)
    assert model.training


def test_a_seed_repeats_what_is_drawn_and_leaves_torchs_own_numbers() -> None:
    model, prompt = make_model(30), torch.tensor([[3, 7]])
    before = torch.get_rng_state()
    config = GenerationConfig(max_length=30, temperature=1.5, seed=1)
    assert generate_ids(model, prompt, config).equal(generate_ids(model, prompt, config))
    assert torch.get_rng_state().equal(before)
    other = GenerationConfig(max_length=30, temperature=1.5, seed=2)
    assert not generate_ids(model, prompt, config).equal(generate_ids(model, prompt, other))


def test_tokens_are_drawn_with_the_filtered_probabilities() -> None:
    model, rows = make_model(8), 4000
    with torch.no_grad():
        logits = model.eval()(torch.tensor([[3, 7]])).logits[0, -1] / 1.3
    kept = logits.topk(4).indices
    expected = torch.zeros(8).index_put((kept,), logits[kept].softmax(dim=-1))
    config = GenerationConfig(max_new_tokens=1, temperature=1.3, top_k=4, seed=0)
    drawn = Counter(generate_ids(model, torch.tensor([[3, 7]]).repeat(rows, 1), config)[:, -1].tolist())
    assert set(drawn) <= set(kept.tolist())
    # Pearson's chi-squared, 3 degrees of freedom: above 16.3 in one of a thousand experiments; the seed is fixed.
    assert sum((drawn[t] - rows * p) ** 2 / (rows * p) for t, p in enumerate(expected.tolist()) if p > 0) < 16.3


def test_a_row_ends_at_its_end_token_and_is_padded() -> None:
    model, prompt = make_model(30, seed=1), torch.tensor([[3], [4]])
    free = generate_ids(model, prompt, GenerationConfig(max_length=12))
    end = int(free[0, 4])
    ended = generate_ids(model, prompt, GenerationConfig(max_length=12, eos_token_id=end, pad_token_id=29))
    for row, free_row in zip(ended.tolist(), free.tolist(), strict=True):
        length = free_row.index(end, 1) + 1 if end in free_row[1:] else 12
        assert row == (free_row[:length] + [29] * 12)[: ended.shape[1]]
    alone = generate_ids(model, prompt[:1], GenerationConfig(max_length=12, eos_token_id=end))
    assert alone.tolist() == [free[0, : free[0].tolist().index(end, 1) + 1].tolist()]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.7])
@pytest.mark.parametrize("seed", range(2))
def test_wide_beams_equal_a_search_of_everything(length_penalty: float, penalty: float, seed: int) -> None:
    vocabulary, steps, end = 4, 3, 2
    model, prompt = make_model(vocabulary, seed=seed), [1, 3]
    scores = {}
    for length in range(1, steps + 1):
        for new in itertools.product(range(vocabulary), repeat=length):
            if end in new[:-1] or (length < steps and new[-1] != end):
                continue
            scores[new] = log_probability(model, prompt, new, penalty) / length**length_penalty
    best = max(scores, key=scores.__getitem__)
    config = GenerationConfig(
        max_new_tokens=steps, num_beams=vocabulary**steps, length_penalty=length_penalty, repetition_penalty=penalty,
        eos_token_id=end,
    )  # fmt: skip
    assert generate_ids(model, torch.tensor([prompt]), config)[0, 2:].tolist() == list(best)


def test_beams_find_what_greedy_misses() -> None:
    better = 0
    for seed in range(6):
        model, prompt = make_model(12, seed=seed), torch.tensor([[1, 3]])
        results = [generate_ids(model, prompt, GenerationConfig(max_length=8, num_beams=n))[0].tolist() for n in (1, 6)]
        greedy, beams = (log_probability(model, ids[:2], tuple(ids[2:])) for ids in results)
        assert beams >= greedy - 1e-4
        better += beams > greedy + 1e-4
    assert better


def test_beams_equal_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=20,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=32,
            initializer_range=0.4,
            bos_token_id=1,
            eos_token_id=5,
        )
    ).eval()
    theirs.save_pretrained(tmp_path)
    ours = TransformerLM.from_pretrained(tmp_path)
    prompt = torch.tensor([[3, 7]])
    for beams, length_penalty in itertools.product((2, 4), (0.0, 1.0, 2.0)):
        expected = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, num_beams=beams, do_sample=False,
            length_penalty=length_penalty, early_stopping="never", eos_token_id=5, pad_token_id=0,
        )  # fmt: skip
        config = GenerationConfig(max_new_tokens=10, num_beams=beams, length_penalty=length_penalty, eos_token_id=5)
        assert generate_ids(ours, prompt, config).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "config",
    [None, GenerationConfig(max_length=24, repetition_penalty=1.4), GenerationConfig(max_new_tokens=9, num_beams=3)],
)
def test_a_batch_gives_the_texts_of_one_at_a_time(
    tokenizer: BPETokenizer, kind: str, config: GenerationConfig | None
) -> None:
    generator = generator_of(tokenizer, kind)
    prompts = ["the cat", "", "the dog sat on the mat.", "x", "世"]
    together = generator.batch_generate(prompts, config)
    assert together == [generator.generate(prompt, config) for prompt in prompts]
    assert all(text.startswith(prompt) for text, prompt in zip(together, prompts, strict=True))
    assert len(set(together)) == len(prompts)


def test_prompts_whose_padding_does_not_fit_are_continued_apart(tokenizer: BPETokenizer) -> None:
    generator = generator_of(tokenizer, max_seq_len=24)
    prompts = ["the cat sat on the mat.", "x", "the", "the cat sat on the mat"]
    config = GenerationConfig(max_length=24)
    assert generator.batch_generate(prompts, config) == [generator.generate(prompt, config) for prompt in prompts]


def test_ids_outside_the_tokenizers_vocabulary_are_never_generated(tokenizer: BPETokenizer) -> None:
    generator = generator_of(tokenizer)
    with torch.no_grad():  # the model likes a token best that the tokenizer does not have
        generator.model.norm.bias.fill_(1.0)
        generator.model.head.weight[-1].fill_(9.0)
    assert (
        generate_ids(generator.model, torch.tensor([[1]]), GenerationConfig(max_length=2))[0, 1] >= tokenizer.vocab_size
    )
    assert generator.generate("the cat").startswith("the cat")


def test_somebody_types(tokenizer: BPETokenizer) -> None:
    generator = generator_of(tokenizer)
    config = GenerationConfig(max_length=30)
    for ending in ("\n", ""):
        out = io.StringIO()
        generator.interactive_generate(config, io.StringIO("the cat\n" + "the cat " * 30 + "\n" + ending), out)
        first, _, rest = out.getvalue().removeprefix("> ").partition("> ")
        assert first == generator.generate("the cat", config) + "\n"
        assert rest.startswith("the prompt has ")
        assert rest.endswith("> \n")


def test_ctrl_c_ends_typing(tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    out = io.StringIO()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=interrupted))
    monkeypatch.setattr("sys.stdout", out)
    generator_of(tokenizer).interactive_generate()
    assert out.getvalue() == "> \n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"temperature is 0\.0; it must be a number of more than 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 1.5}, r"top_p is 1\.5"),
        ({"max_length": 0}, "max_length is 0; it must be a whole number of at least 1"),
        ({"max_length": None}, "max_length is None"),
        ({"max_new_tokens": -3}, "max_new_tokens is -3"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 2, "top_k": 5}, "beam search does not draw. Set num_beams to 1 or do_sample to False"),
        ({"repetition_penalty": -1.0}, r"repetition_penalty is -1\.0"),
        ({"length_penalty": math.inf}, "length_penalty is inf"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_values_are_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(GenerationError, match=message) as raised:
        GenerationConfig(**options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_greedy_ignores_what_only_drawing_uses() -> None:
    assert not GenerationConfig(temperature=0.5, top_k=3, top_p=0.5, do_sample=False, num_beams=2).is_sampling
    assert not GenerationConfig().is_sampling
    assert GenerationConfig(top_k=3).is_sampling
    assert GenerationConfig(top_p=0.5).is_sampling
    assert GenerationConfig(do_sample=True).is_sampling


@pytest.mark.parametrize(
    ("ids", "mask", "config", "message"),
    [
        ([[]], None, GenerationConfig(), r"input_ids is \(1, 0\)"),
        (
            [1, 2],
            None,
            GenerationConfig(),
            r"input_ids is \(2,\) of torch.int64; expected ids, \(batch, sequence\)",
        ),
        ([[1] * 9], None, GenerationConfig(max_length=9), "the prompt has 9 tokens and max_length is 9; raise it"),
        ([[1]], None, GenerationConfig(max_length=65), "max_length is 65 tokens; max_seq_len of the model is 64"),
        ([[1]], None, GenerationConfig(max_new_tokens=64), "the prompt and max_new_tokens is 65 tokens"),
        ([[1, 2]], [[1, 0]], GenerationConfig(max_length=9), "pad prompts on the left"),
        ([[1, 2]], [[1]], GenerationConfig(max_length=9), r"attention_mask is \(1, 1\); expected \(1, 2\)"),
        ([[0] * 9 + [1], [2] * 10], [[0] * 9 + [1], [1] * 10], GenerationConfig(max_length=60), "would grow to 69"),
    ],
)
def test_bad_prompts_are_one_line(
    ids: list[list[int]], mask: list[list[int]] | None, config: GenerationConfig, message: str
) -> None:
    with pytest.raises(GenerationError, match=message):
        generate_ids(
            make_model(30), torch.tensor(ids, dtype=torch.long), config, None if mask is None else torch.tensor(mask)
        )


def test_a_model_that_diverged_is_said_to_have(tokenizer: BPETokenizer) -> None:
    generator = generator_of(tokenizer)
    with torch.no_grad():
        generator.model.head.weight.fill_(math.nan)
    with pytest.raises(GenerationError, match="logits of token 2 are not numbers"):
        generator.generate("x")


def test_a_tokenizer_that_is_not_the_models_is_refused(tokenizer: BPETokenizer) -> None:
    with pytest.raises(GenerationError, match="use the tokenizer with which the model was trained"):
        TextGenerator(make_model(30), tokenizer)
    with pytest.raises(GenerationError, match="prompts is one str"):
        generator_of(tokenizer).batch_generate("the cat")
    with pytest.raises(GenerationError, match="the prompt is int; expected str"):
        generator_of(tokenizer).generate(3)  # type: ignore[arg-type]
