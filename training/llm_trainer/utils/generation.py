"""Continue tokens and texts: greedy, drawn, or by beam search; one, a batch, or as somebody types."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TextIO

import torch
from torch import Tensor

from llm_trainer.exceptions import GenerationError
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.utils.causal_lm import CausalLM
from llm_trainer.utils.continuation import Continuation
from llm_trainer.utils.generation_config import GenerationConfig
from llm_trainer.utils.sampling import apply_repetition_penalty, create_causal_mask, sample_top_k, sample_top_p


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


__all__ = [
    "GenerationConfig",
    "TextGenerator",
    "apply_repetition_penalty",
    "create_causal_mask",
    "generate_ids",
    "sample_top_k",
    "sample_top_p",
]


def generate_ids(
    model: CausalLM,
    input_ids: Tensor,
    config: GenerationConfig | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Return the tokens given, and behind them those that the model adds; it is in evaluation mode meanwhile.

    Args:
        model: whole, not a stage of a pipeline.
        input_ids: (batch, sequence) tokens, padding on the left where a row is shorter.
        config: how to continue; None: greedily, to 100 tokens or what the model can.
        attention_mask: (batch, sequence), 1 for a token and 0 for padding; None: there is no padding.

    Returns:
        (batch, longer sequence); behind its end token a row has padding.

    Raises:
        GenerationError: a prompt is empty, or the length is more than the model's or leaves no room.
    """
    config = GenerationConfig(max_length=min(100, model.config.max_seq_len)) if config is None else config
    mask, lengths = _checked(input_ids, attention_mask)
    limits = torch.tensor([_new_tokens(length, model.config.max_seq_len, config) for length in lengths])
    columns = input_ids.shape[1] + int(limits.max())
    if columns > model.config.max_seq_len:
        raise GenerationError(
            f"a batch of prompts of {min(lengths)} to {max(lengths)} tokens would grow to {columns} with its padding; "
            f"max_seq_len of the model is {model.config.max_seq_len}. Generate fewer tokens, or prompts of like length"
        )
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            if config.num_beams > 1:
                return _searched(model, input_ids, lengths, limits.tolist(), config)
            return _grow(Continuation(model, input_ids, mask, columns, config), limits.to(input_ids.device), config)
    finally:
        model.train(was_training)


def _searched(
    model: CausalLM, input_ids: Tensor, lengths: list[int], limits: list[int], config: GenerationConfig
) -> Tensor:
    """Continue every row, of which the last ``lengths`` tokens are no padding, by a beam search of its own."""
    new = [
        beam_search(model, row[len(row) - length :], limit, config)
        for row, length, limit in zip(input_ids, lengths, limits, strict=True)
    ]
    added = torch.nn.utils.rnn.pad_sequence(new, batch_first=True, padding_value=_padding(config))
    return torch.cat((input_ids, added), dim=1)


def _grow(rows: Continuation, limits: Tensor, config: GenerationConfig) -> Tensor:
    """Add the most probable token, or one that is drawn, to every row until all have ended or reached their limit."""
    device = limits.device
    generator = None if config.seed is None else torch.Generator(device).manual_seed(config.seed)
    is_done = torch.zeros_like(limits, dtype=torch.bool)
    for length in range(1, int(limits.max()) + 1):
        logits = rows.logits()
        token = _drawn(logits, config, generator) if config.is_sampling else logits.argmax(dim=-1)
        token = token.masked_fill(is_done, _padding(config))
        rows.append(token)
        is_done = is_done | (limits <= length)
        if config.eos_token_id is not None:
            is_done = is_done | (token == config.eos_token_id)
        if bool(is_done.all()):
            break
    return rows.tokens


def _drawn(logits: Tensor, config: GenerationConfig, generator: torch.Generator | None) -> Tensor:
    """Draw a token of every row."""
    logits = logits / config.temperature
    if config.top_k is not None:
        logits = sample_top_k(logits, config.top_k)
    if config.top_p is not None:
        logits = sample_top_p(logits, config.top_p)
    return torch.multinomial(logits.softmax(dim=-1), num_samples=1, generator=generator).squeeze(1)


def _padding(config: GenerationConfig) -> int:
    if config.pad_token_id is not None:
        return config.pad_token_id
    return 0 if config.eos_token_id is None else config.eos_token_id


def _checked(input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor | None, list[int]]:
    """Return the mask, or None where nothing is padding, and the tokens of each prompt."""
    if input_ids.dim() != 2 or input_ids.is_floating_point() or not input_ids.numel():
        raise GenerationError(
            f"input_ids is {tuple(input_ids.shape)} of {input_ids.dtype}; expected ids, (batch, sequence), at least one"
        )
    if attention_mask is None:
        return None, [input_ids.shape[1]] * len(input_ids)
    if attention_mask.shape != input_ids.shape:
        raise GenerationError(
            f"attention_mask is {tuple(attention_mask.shape)}; expected {tuple(input_ids.shape)} as input_ids"
        )
    mask = attention_mask.to(dtype=torch.long)
    if bool((mask[:, -1] == 0).any()) or bool((mask.diff(dim=1) < 0).any()):
        raise GenerationError("attention_mask has padding behind tokens; pad prompts on the left to continue them")
    return (None if bool(mask.all()) else mask), mask.sum(dim=1).tolist()


def _new_tokens(prompt: int, max_seq_len: int, config: GenerationConfig) -> int:
    """Return how many tokens a prompt of so many tokens is continued by at most."""
    total = config.max_length if config.max_new_tokens is None else prompt + config.max_new_tokens
    name = "max_length" if config.max_new_tokens is None else "the prompt and max_new_tokens"
    if total > max_seq_len:
        raise GenerationError(
            f"{name} is {total} tokens; max_seq_len of the model is {max_seq_len}. Generate fewer tokens"
        )
    if total <= prompt:
        raise GenerationError(
            f"the prompt has {prompt} tokens and max_length is {total}; raise it, or set max_new_tokens"
        )
    return total - prompt


class TextGenerator:
    """Continue texts with a model and its tokenizer.

    Attributes:
        model: on ``device``.
        tokenizer: with which the model was trained.
        device: of the model.
    """

    def __init__(self, model: CausalLM, tokenizer: BPETokenizer, device: torch.device | str | None = None) -> None:
        """Move the model to a device.

        Args:
            model: a language model.
            tokenizer: with which it was trained.
            device: None: where the model is.

        Raises:
            GenerationError: the tokenizer has more tokens than the model.
            TokenizerNotTrainedException: the tokenizer has no vocabulary yet.
        """
        if tokenizer.vocab_size > model.config.vocab_size:
            raise GenerationError(
                f"the tokenizer has {tokenizer.vocab_size} tokens and the model {model.config.vocab_size}; use the "
                "tokenizer with which the model was trained"
            )
        self.device = next(model.parameters()).device if device is None else torch.device(device)
        self.model = model.to(self.device)
        self.tokenizer = tokenizer

    def generate(self, prompt: str, config: GenerationConfig | None = None) -> str:
        """Return a prompt and its continuation.

        Args:
            prompt: may be empty.
            config: how to continue; None: greedily, to 100 tokens or what the model can.

        Raises:
            GenerationError: the prompt is no text, or too long.
        """
        return self.batch_generate([prompt], config)[0]

    def batch_generate(self, prompts: Sequence[str], config: GenerationConfig | None = None) -> list[str]:
        """Return prompts and their continuations; unless drawn, they are those of one prompt at a time.

        Args:
            prompts: continued together, as far as their padding fits into the model.
            config: as in :meth:`generate`.

        Raises:
            GenerationError: a prompt is no text, or too long.
        """
        return [self.tokenizer.decode(old + new) for old, new in self.continue_prompts(prompts, config)]

    def continue_prompts(
        self, prompts: Sequence[str], config: GenerationConfig | None = None
    ) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of each prompt and those of its continuation; as :meth:`batch_generate`."""
        if isinstance(prompts, str):
            raise GenerationError("prompts is one str; expected a list of them. Pass [prompt]")
        config = self._completed(config)
        encoded = [self.encode_prompt(prompt) for prompt in prompts]
        limit = self.model.config.max_seq_len
        new = [_new_tokens(len(prompt), limit, config) for prompt in encoded]
        results: dict[int, tuple[list[int], list[int]]] = {}
        for group in _groups([len(prompt) for prompt in encoded], new, limit):
            continued = self._continued([encoded[number] for number in group], config)
            for number, added in zip(group, continued, strict=True):
                if config.eos_token_id in added:
                    added = added[: added.index(config.eos_token_id) + 1]
                results[number] = encoded[number], added[: new[number]]
        return [results[number] for number in range(len(encoded))]

    def interactive_generate(
        self,
        config: GenerationConfig | None = None,
        input_stream: TextIO | None = None,
        output_stream: TextIO | None = None,
    ) -> None:
        """Continue each line that somebody types; an empty line, the end of the input or Ctrl-C ends it.

        Args:
            config: as in :meth:`generate`.
            input_stream: None: standard input.
            output_stream: None: standard output.
        """
        source = sys.stdin if input_stream is None else input_stream
        target = sys.stdout if output_stream is None else output_stream
        try:
            while True:
                target.write("> ")
                target.flush()
                prompt = source.readline().rstrip("\r\n")
                if not prompt:
                    break
                try:
                    target.write(self.generate(prompt, config) + "\n")
                except GenerationError as error:
                    target.write(f"{error}\n")
        except KeyboardInterrupt:
            pass
        target.write("\n")

    def encode_prompt(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt behind the token that begins a document.

        Raises:
            GenerationError: it is no text.
        """
        if not isinstance(prompt, str):
            raise GenerationError(f"the prompt is {type(prompt).__name__}; expected str")
        return self.tokenizer.encode(prompt)[:-1]

    def _continued(self, prompts: list[list[int]], config: GenerationConfig) -> list[list[int]]:
        """Return the tokens that the model adds to each prompt, and padding behind them."""
        longest = max(map(len, prompts))
        padding = self.tokenizer.pad_token_id
        rows = [[padding] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        ids = generate_ids(
            self.model,
            torch.tensor(rows, device=self.device),
            config,
            torch.tensor(mask, device=self.device),
        )
        return [row[longest:] for row in ids.tolist()]

    def _completed(self, config: GenerationConfig | None) -> GenerationConfig:
        """Return the configuration with the tokenizer's tokens."""
        if config is None:
            config = GenerationConfig(max_length=min(100, self.model.config.max_seq_len))
        tokenizer = self.tokenizer
        return replace(
            config,
            eos_token_id=tokenizer.eos_token_id if config.eos_token_id is None else config.eos_token_id,
            pad_token_id=tokenizer.pad_token_id if config.pad_token_id is None else config.pad_token_id,
            vocab_size=tokenizer.vocab_size if config.vocab_size is None else config.vocab_size,
        )


def _groups(prompts: list[int], new: list[int], limit: int) -> list[list[int]]:
    """Return which prompts are continued together, given their tokens and those to be added.

    Padding makes a row as long as the longest prompt and the longest continuation; that must fit into the model.
    """
    groups: list[list[int]] = []
    longest = added = 0
    for number in sorted(range(len(prompts)), key=prompts.__getitem__):
        longest, added = max(longest, prompts[number]), max(added, new[number])
        if not groups or longest + added > limit:
            groups.append([])
            longest, added = prompts[number], new[number]
        groups[-1].append(number)
    return groups
