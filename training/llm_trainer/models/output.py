"""Output of a language model."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class ModelOutput(NamedTuple):
    """Loss and logits, by attribute, by name or by place.

    A tuple, so that DistributedDataParallel and FSDP2 see the tensors inside.

    Attributes:
        loss: mean cross entropy of the next token; None without labels.
        logits: (batch, sequence, vocabulary).
    """

    loss: Tensor | None
    logits: Tensor

    def __getitem__(self, key: Any) -> Any:
        """Return a field by its name or place."""
        if isinstance(key, str):
            if key not in self._fields:
                raise KeyError(key)
            return getattr(self, key)
        return tuple(self)[key]
