"""Metrics of token prediction and of generated texts; words are separated by white space."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from llm_trainer.exceptions import DataError

IGNORED = -100  # a label that does not count
LONGEST_REPETITION = 4  # words


def compute_perplexity(
    model: nn.Module,
    dataloader: Iterable[Mapping[str, Tensor]],
    device: torch.device | str | None = None,
    max_batches: int | None = None,
) -> float:
    """Return exp of the mean cross entropy of all predicted tokens, each counting once whatever its batch.

    Args:
        model: that returns the mean loss of a batch, as ``TransformerLM`` does; in evaluation mode meanwhile.
        dataloader: of batches with input_ids and, optionally, labels (not shifted, -100 does not count) and
            attention_mask. Without labels all tokens count that the mask does not leave out.
        device: the model and the batches are moved there; None: where the model is.
        max_batches: after which reading ends; None: all.

    Raises:
        DataError: no batch has a token to predict.
    """
    device = next(model.parameters()).device if device is None else torch.device(device)
    model.to(device)
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    try:
        with torch.no_grad():
            for batch in islice(dataloader, max_batches):
                tensors = {name: tensor.to(device) for name, tensor in batch.items()}
                input_ids, mask, labels = (tensors.get(name) for name in ("input_ids", "attention_mask", "labels"))
                if input_ids is None:
                    raise DataError(f"a batch has no input_ids; it has {', '.join(batch) or 'nothing'}")
                if labels is None:
                    labels = input_ids if mask is None else input_ids.masked_fill(mask == 0, IGNORED)
                predicted = int((labels[:, 1:] != IGNORED).sum())
                if predicted:
                    loss = model(input_ids, attention_mask=mask, labels=labels)["loss"]
                    total += float(loss) * predicted
                    count += predicted
    finally:
        model.train(was_training)
    if not count:
        raise DataError("no batch has a token to predict; give texts of at least two tokens")
    mean = total / count
    return math.exp(mean) if mean < math.log(torch.finfo(torch.float64).max) else math.inf


def compute_bleu_score(predictions: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> float:
    """Return the BLEU score of a corpus, from 0 to 1, as sacrebleu computes it (with its tokenizer, 13a).

    It is the geometric mean of the precisions of 1 to 4 words, times the brevity penalty exp(1 - r / c) where the
    predictions' c words are fewer than the references' r; a precision of no match is smoothed.

    Args:
        predictions: texts.
        references: one a prediction, or several, as many for each.

    Raises:
        DataError: they are not as many, there is none, or sacrebleu is not installed.

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771.
    """
    texts = _texts("predictions", predictions)
    if isinstance(references, str) or len(references) != len(texts):
        number = 1 if isinstance(references, str) else len(references)
        raise DataError(f"there are {len(texts)} predictions and {number} references; expected one or more for each")
    per_text = [[entry] if isinstance(entry, str) else list(entry) for entry in references]
    if not texts or len({len(entry) for entry in per_text}) != 1 or not per_text[0]:
        raise DataError("predictions need at least one reference each, and as many as one another")
    try:
        import sacrebleu
    except ImportError:
        raise DataError("BLEU is computed by sacrebleu, which is not installed; pip install sacrebleu") from None
    streams = [list(stream) for stream in zip(*per_text, strict=True)]
    return float(sacrebleu.corpus_bleu(texts, streams).score) / 100.0


def compute_diversity_metrics(texts: Sequence[str]) -> dict[str, float]:
    """Return ``distinct_1`` and ``distinct_2``: different words, and pairs of words, per such of all texts together.

    Both are 0 where there is none. Source: Li et al. 2016, arXiv:1510.03055, section 5.

    Raises:
        DataError: an entry is no text.
    """
    words = [text.split() for text in _texts("texts", texts)]
    scores = {}
    for size in (1, 2):
        runs = [run for text in words for run in _runs(text, size)]
        scores[f"distinct_{size}"] = len(set(runs)) / len(runs) if runs else 0.0
    return scores


def compute_repetition_metrics(texts: Sequence[str]) -> dict[str, float]:
    """Return ``repetition_1`` to ``repetition_4``: of a text's runs of n words, those that occurred in it before.

    Means over the texts that are long enough; 0 where none is. ``repeated_words`` are those that equal the word
    before, of all words that have one. Source: Welleck et al. 2020, arXiv:1908.04319, equation 9 (seq-rep-n).

    Raises:
        DataError: an entry is no text.
    """
    words = [text.split() for text in _texts("texts", texts)]
    scores = {}
    for size in range(1, LONGEST_REPETITION + 1):
        runs = [_runs(text, size) for text in words if len(text) >= size]
        repeated = [1.0 - len(set(text)) / len(text) for text in runs]
        scores[f"repetition_{size}"] = sum(repeated) / len(repeated) if repeated else 0.0
    pairs = [pair for text in words for pair in _runs(text, 2)]
    scores["repeated_words"] = sum(first == second for first, second in pairs) / len(pairs) if pairs else 0.0
    return scores


def evaluate_generation_quality(
    generated_texts: Sequence[str], reference_texts: Sequence[str] | Sequence[Sequence[str]] | None = None
) -> dict[str, Any]:
    """Return all metrics of texts: their number and mean words, diversity, repetition, and BLEU beside references.

    Raises:
        DataError: an entry is no text, or as in :func:`compute_bleu_score`.
    """
    texts = _texts("generated_texts", generated_texts)
    if not texts:
        raise DataError("generated_texts is empty; there is nothing to evaluate")
    metrics: dict[str, Any] = {
        "num_texts": len(texts),
        "mean_words": sum(len(text.split()) for text in texts) / len(texts),
        **compute_diversity_metrics(texts),
        **compute_repetition_metrics(texts),
    }
    if reference_texts is not None:
        metrics["bleu"] = compute_bleu_score(texts, reference_texts)
    return metrics


def _runs(words: list[str], size: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[start:] for start in range(size)), strict=False))


def _texts(name: str, texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise DataError(f"{name} is one str; expected a list of them. Pass [text]")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"{name}[{number}] is {type(text).__name__}; expected str")
    return list(texts)
