"""Beam search with length normalisation.

Source: Wu et al. 2016, arXiv:1609.08144, section 7, with the power of the length alone as penalty, as in transformers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llm_trainer.utils.causal_lm import CausalLM
from llm_trainer.utils.continuation import Continuation
from llm_trainer.utils.generation_config import GenerationConfig


def beam_search(model: CausalLM, prompt: Tensor, max_new_tokens: int, config: GenerationConfig) -> Tensor:
    """Return the best continuation of a prompt, with its end token if it has one.

    ``num_beams`` unfinished continuations are kept at each length. One that ends among the best ``num_beams`` is
    finished. The search stops when no unfinished one can become better than the best finished one.

    Args:
        model: in evaluation mode.
        prompt: (sequence,) tokens.
        max_new_tokens: tokens of the continuation at most.
        config: number of beams, penalties, end token.

    Returns:
        (new tokens,).
    """
    start = len(prompt)
    beams = Continuation(model, prompt[None], None, start + max_new_tokens, config)
    scores = torch.zeros(1, device=prompt.device)  # sums of log probabilities
    best_score, best = -math.inf, prompt[:0]

    for length in range(1, max_new_tokens + 1):
        sums = scores[:, None] + beams.logits().log_softmax(dim=-1)
        vocabulary = sums.shape[1]
        candidates = sums.flatten().topk(min(2 * config.num_beams, sums.numel()))  # half of them may end here
        rows, tokens = candidates.indices // vocabulary, candidates.indices % vocabulary

        unfinished: list[int] = []
        for rank, (total, token) in enumerate(zip(candidates.values.tolist(), tokens.tolist(), strict=True)):
            is_end = token == config.eos_token_id
            if is_end and rank < config.num_beams and total / length**config.length_penalty > best_score:
                best_score = total / length**config.length_penalty
                best = torch.cat((beams.tokens[rows[rank], start:], tokens[rank : rank + 1]))
            if not is_end and len(unfinished) < config.num_beams and total > -math.inf:
                unfinished.append(rank)
        if not unfinished:
            break
        kept = torch.tensor(unfinished, device=prompt.device)
        scores = candidates.values[kept]
        beams.select(rows[kept])
        beams.append(tokens[kept])
        # Log probabilities only fall; dividing by the length may raise the mean of what is left.
        lengths = (length, max_new_tokens)
        if max(float(scores[0]) / reached**config.length_penalty for reached in lengths) <= best_score:
            break
        if length == max_new_tokens and float(scores[0]) / length**config.length_penalty > best_score:
            best = beams.tokens[0, start:]
    return best
