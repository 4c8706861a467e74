"""Settings of text generation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_trainer.exceptions import GenerationError
from llm_trainer.utils.sampling import check_positive, check_top_k, check_top_p


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How a text is continued.

    Attributes:
        max_length: tokens of prompt and continuation at most.
        max_new_tokens: tokens of the continuation at most, in place of max_length; None: max_length counts.
        temperature: divides logits before a token is drawn.
        top_k: draw from the k most probable tokens; None: from all.
        top_p: draw from the fewest most probable tokens whose probabilities sum to this; None: from all.
        do_sample: draw tokens, or take the most probable one (then the three fields above have no effect); None: draw
            if one of these three is set.
        num_beams: continuations kept in a beam search; 1: none.
        length_penalty: a beam's score is the sum of its log probabilities, divided by its new tokens to this power.
        repetition_penalty: divides positive logits of tokens that have occurred, and multiplies negative ones.
        eos_token_id: ends a continuation; None: the tokenizer's, or nothing where there is none.
        pad_token_id: behind the end of the shorter rows of a batch; None: the end token, or 0.
        vocab_size: ids of this and above are never generated, as of an embedding that is wider than the tokenizer's
            vocabulary; None: the tokenizer's, or no limit.
        seed: of drawing; None: go on with torch's random numbers.
        use_cache: keep keys and values of earlier tokens, instead of computing them again for every token.
    """

    max_length: int = 100
    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    do_sample: bool | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    vocab_size: int | None = None
    seed: int | None = None
    use_cache: bool = True

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            GenerationError: a value is not allowed.
        """
        for name, least in (("max_length", 1), ("max_new_tokens", 1), ("num_beams", 1), ("vocab_size", 1),
                            ("eos_token_id", 0), ("pad_token_id", 0), ("seed", 0)):  # fmt: skip
            value = getattr(self, name)
            is_unset = value is None and name not in ("max_length", "num_beams")
            if not is_unset and (type(value) is not int or value < least):
                raise GenerationError(f"{name} is {value!r}; it must be a whole number of at least {least}")
        check_positive("temperature", self.temperature)
        check_positive("repetition_penalty", self.repetition_penalty)
        power: object = self.length_penalty
        if not isinstance(power, int | float) or not math.isfinite(power):
            raise GenerationError(f"length_penalty is {power!r}; it must be a number")
        if self.top_k is not None:
            check_top_k(self.top_k)
        if self.top_p is not None:
            check_top_p(self.top_p)
        if self.num_beams > 1 and self.is_sampling:
            raise GenerationError(
                f"num_beams is {self.num_beams} and tokens are to be drawn (do_sample, temperature, top_k or top_p); "
                "beam search does not draw. Set num_beams to 1 or do_sample to False"
            )

    @property
    def is_sampling(self) -> bool:
        """Return whether tokens are drawn."""
        if self.do_sample is not None:
            return self.do_sample
        return self.temperature != 1.0 or self.top_k is not None or self.top_p is not None
