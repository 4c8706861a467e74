"""Metrics, computed by hand and by independent means."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from llm_trainer.config import ModelConfig
from llm_trainer.data import LanguageModelingDataset, create_dataloader
from llm_trainer.exceptions import DataError
from llm_trainer.models import TransformerLM
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.utils.metrics import (
    compute_bleu_score,
    compute_diversity_metrics,
    compute_perplexity,
    compute_repetition_metrics,
    evaluate_generation_quality,
)


@pytest.fixture(scope="module")
def model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(
        ModelConfig(vocab_size=270, d_model=16, n_heads=2, n_layers=1, d_ff=32, max_seq_len=32, init_std=0.3)
    )


def test_perplexity_counts_every_token_once(model: TransformerLM) -> None:
    tokenizer = BPETokenizer()
    tokenizer.train(["the cat sat on the mat"], vocab_size=270)
    texts = ["the cat", "the cat sat on the mat. the cat sat on the mat", "mat " * 9]
    dataset = LanguageModelingDataset(texts, tokenizer, max_length=16, pack_sequences=False)
    surprises = []
    with torch.no_grad():
        for item in dataset:
            size = int(item.get("attention_mask", torch.ones(16)).sum())
            log_probabilities = model.eval()(item["input_ids"][None, :size]).logits[0].log_softmax(dim=-1)
            surprises += [-float(log_probabilities[n, item["input_ids"][n + 1]]) for n in range(size - 1)]
    expected = math.exp(sum(surprises) / len(surprises))
    model.train()
    for batch_size in (1, 2, len(dataset)):
        assert compute_perplexity(model, create_dataloader(dataset, batch_size), "cpu") == pytest.approx(
            expected, rel=1e-4
        )
    assert model.training
    without_labels = [
        {name: tensor for name, tensor in batch.items() if name != "labels"} for batch in create_dataloader(dataset, 2)
    ]
    assert compute_perplexity(model, without_labels) == pytest.approx(expected, rel=1e-4)
    first = compute_perplexity(model, create_dataloader(dataset, 1), max_batches=1)
    assert first == pytest.approx(compute_perplexity(model, [next(iter(create_dataloader(dataset, 1)))]))


def test_perplexity_of_equal_probabilities_is_the_vocabulary(model: TransformerLM) -> None:
    flat = TransformerLM(model.config)
    assert flat.head is not None
    with torch.no_grad():
        flat.head.weight.zero_()
    assert compute_perplexity(flat, [{"input_ids": torch.randint(270, (2, 9))}]) == pytest.approx(270, rel=1e-5)


def test_perplexity_of_nothing_is_refused(model: TransformerLM) -> None:
    for batches in ([], [{"input_ids": torch.ones(2, 1, dtype=torch.long)}]):
        with pytest.raises(DataError, match="no batch has a token to predict"):
            compute_perplexity(model, batches)
    with pytest.raises(DataError, match="a batch has no input_ids; it has ids"):
        compute_perplexity(model, [{"ids": torch.ones(1, 2)}])


def bleu(prediction: list[str], reference: list[str]) -> float:
    """Return BLEU of one pair, as Papineni et al. define it; every precision must be positive."""
    logs = 0.0
    for size in range(1, 5):
        ours, theirs = (
            Counter(tuple(words[n : n + size]) for n in range(len(words) - size + 1))
            for words in (prediction, reference)
        )
        logs += math.log((ours & theirs).total() / ours.total()) / 4
    return math.exp(min(0.0, 1 - len(reference) / len(prediction)) + logs)


def test_bleu_by_hand() -> None:
    pytest.importorskip("sacrebleu")
    reference = "the cat sat on the red mat today"
    # 7 of 8 words, 5 of 7 pairs, 4 of 6 triples, 3 of 5 quadruples; equal lengths.
    prediction = "the cat sat on the blue mat today"
    expected = (7 / 8 * 5 / 7 * 3 / 6 * 2 / 5) ** 0.25
    assert compute_bleu_score([prediction], [reference]) == pytest.approx(expected)
    assert bleu(prediction.split(), reference.split()) == pytest.approx(expected)
    # All words match, but there are 5 for 8: the brevity penalty alone.
    short = "the cat sat on the"
    assert compute_bleu_score([short], [reference]) == pytest.approx(math.exp(1 - 8 / 5))
    assert bleu(short.split(), reference.split()) == pytest.approx(math.exp(1 - 8 / 5))
    assert compute_bleu_score([reference], [reference]) == pytest.approx(1.0)
    assert compute_bleu_score(["nothing alike here at all"], [reference]) < 0.1


def test_bleu_takes_the_better_of_several_references() -> None:
    pytest.importorskip("sacrebleu")
    good, bad = "the cat sat on the mat", "a dog ran in some park"
    assert compute_bleu_score([good, good], [[bad, good], [good, bad]]) == pytest.approx(1.0)
    assert compute_bleu_score([good], [[bad]]) < 0.1


def test_diversity_by_hand() -> None:
    # 7 words, 4 of them different; pairs: (a b) (b a) (a b), (c c) (c d), and none across texts.
    assert compute_diversity_metrics(["a b a b", "c c d"]) == {"distinct_1": 4 / 7, "distinct_2": 4 / 5}
    assert compute_diversity_metrics(["", "  "]) == {"distinct_1": 0.0, "distinct_2": 0.0}


def test_repetition_by_hand() -> None:
    scores = compute_repetition_metrics(["a b a b a", "c c"])
    assert scores == {
        "repetition_1": pytest.approx((3 / 5 + 1 / 2) / 2),
        "repetition_2": pytest.approx((2 / 4 + 0 / 1) / 2),
        "repetition_3": pytest.approx(1 / 3),
        "repetition_4": 0.0,
        "repeated_words": pytest.approx(1 / 5),
    }
    assert set(compute_repetition_metrics([""]).values()) == {0.0}


def test_all_metrics_together() -> None:
    pytest.importorskip("sacrebleu")
    texts, references = ["the cat sat on the mat", "the dog"], ["the cat sat on the mat", "a dog ran"]
    metrics = evaluate_generation_quality(generated_texts=texts, reference_texts=references)
    assert metrics == {
        "num_texts": 2,
        "mean_words": 4.0,
        **compute_diversity_metrics(texts),
        **compute_repetition_metrics(texts),
        "bleu": compute_bleu_score(texts, references),
    }
    assert "bleu" not in evaluate_generation_quality(texts)


def test_bad_texts_are_one_line() -> None:
    with pytest.raises(DataError, match="there are 2 predictions and 1 references"):
        compute_bleu_score(["a", "b"], ["a"])
    with pytest.raises(DataError, match="there are 1 predictions and 1 references"):
        compute_bleu_score(["a"], "a")
    with pytest.raises(DataError, match="at least one reference each, and as many as one another"):
        compute_bleu_score(["a", "b"], [["a"], ["b", "c"]])
    with pytest.raises(DataError, match="texts is one str"):
        compute_diversity_metrics("a")
    with pytest.raises(DataError, match=r"texts\[1\] is NoneType; expected str"):
        compute_repetition_metrics(["a", None])  # type: ignore[list-item]
    with pytest.raises(DataError, match="generated_texts is empty"):
        evaluate_generation_quality([])
