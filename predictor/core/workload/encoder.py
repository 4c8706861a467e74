"""Ends of a BERT encoder: token types, a pooler, heads of its pre-training tasks.

Source: Devlin et al. 2018, arXiv:1810.04805; transformers, models/bert/modeling_bert.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from predictor.core.base.fields import Amount, Switch


@dataclass(frozen=True, slots=True)
class Encoder:
    """Ends of a BERT encoder."""

    token_types: Annotated[Amount, Field(description="rows of the embedding of token types")] = 2
    pooler: Annotated[Switch, Field(description="the first token passes a dense layer")] = True
    mlm_head: Annotated[
        Switch,
        Field(description="masked tokens are predicted: dense layer, activation, norm, output projection with a bias"),
    ] = True
    next_sentence_head: Annotated[
        Switch, Field(description="whether two sentences follow each other is predicted from the pooled token")
    ] = False

    def beginning_parameters(self, hidden_size: int) -> int:
        """Return the parameters beside the embedding."""
        return self.token_types * hidden_size

    def end_parameters(self, hidden_size: int, norm_parameters: int) -> int:
        """Return the parameters of the heads, the output projection and its bias not counted.

        Args:
            hidden_size: of the model.
            norm_parameters: of one norm.
        """
        dense = hidden_size * hidden_size + hidden_size
        heads = dense if self.pooler else 0
        heads += dense + norm_parameters if self.mlm_head else 0
        return heads + (2 * hidden_size + 2 if self.next_sentence_head else 0)
