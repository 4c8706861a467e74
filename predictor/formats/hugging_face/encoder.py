"""Encoders of a config.json (BERT, RoBERTa): which heads of the pre-training stand behind the layers."""

from __future__ import annotations

from typing import Any

from predictor.formats.hugging_face.config import Config

HEADS = ("ForPreTraining", "ForMaskedLM", "BertModel", "RobertaModel")


def encoder(config: Config) -> dict[str, Any]:
    """Return the keys of the section model of an encoder; without ``architectures`` it has the head of ForMaskedLM.

    Raises:
        ConfigError: it is used as a decoder.
    """
    for key in ("is_decoder", "add_cross_attention"):
        if config.switch(key):
            raise config.error(key, "of encoders only encoders are predicted")
    names = config.fields.get("architectures")
    listed = isinstance(names, list) and bool(names)
    name = str(names[0]) if isinstance(names, list) and listed else "ForMaskedLM"
    if not listed:
        config.notes.append("no architectures: predicted with the head of masked language modelling, without a pooler")
    masked = not name.endswith("Model")
    return {
        "causal": False,
        "encoder": {
            "token_types": config.whole("type_vocab_size", 0),
            "pooler": not name.endswith("ForMaskedLM"),
            "mlm_head": masked,
            "next_sentence_head": name.endswith("ForPreTraining") and config.model_type == "bert",
        },
        "lm_head_bias": masked,
    }
