"""Encoders (BERT) that arguments of Megatron-LM describe.

Source of names and defaults: NVIDIA/Megatron-LM, pretrain_bert.py, megatron/training/arguments.py and
megatron/core/models/bert/bert_model.py.
"""

from __future__ import annotations

from typing import Any

from predictor.formats.megatron.options import Options

# Sizes of BERT's own vocabularies, by what the name of their file says.
VOCABULARIES = {"uncased": 30522, "cased": 28996}


def encoder(options: Options) -> dict[str, Any]:
    """Return the keys of ``model`` that an encoder has beside a decoder's."""
    pairs = not options.switch("bert-no-binary-head")
    heads = {"pooler": pairs, "mlm_head": True, "next_sentence_head": pairs}
    return {"causal": False, "encoder": {"token_types": 2 if pairs else 0, **heads}}


def word_pieces(options: Options) -> int | None:
    """Return the size of BERT's vocabulary, where the name of its file says which it is."""
    name = str(options.values.get("vocab-file") or "").rpartition("/")[2]
    options.used.add("vocab-file")
    return next((size for kind, size in VOCABULARIES.items() if kind in name and "bert" in name), None)
