"""One rank's training as PyTorch's users write it: autocast, distributed data parallel, an optimizer in fp32.

Gradients are not clipped: a clipped step waits for all gradients at once, which a replay of another precision would
have to learn anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from microbench.call import DTYPES
from microbench.traced.models import loss_of, make_inputs, make_model
from microbench.traced.settings import TraceSettings

LEARNING_RATE = {"sgd": 1e-3, "adamw": 1e-5}
MOMENTUM = 0.9


def make_optimizer(name: str, model: Any) -> Any:
    """Return SGD with momentum, or AdamW, with PyTorch's defaults."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE[name], momentum=MOMENTUM)
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE[name])


class Training:
    """A model with everything that training it needs."""

    def __init__(self, settings: TraceSettings, rank: int) -> None:
        """Make model, inputs and optimizer; with several ranks, the default process group is there already."""
        self._kind = settings.device
        self.device = f"cuda:{torch.cuda.current_device()}" if self._kind == "cuda" else "cpu"
        model = make_model(settings).to(self.device)
        is_gpu = self._kind == "cuda"
        self.model = model
        if settings.ranks > 1:
            self.model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()] if is_gpu else None)
        self._inputs = make_inputs(settings.input_data, rank, self.device)
        self._optimizer = make_optimizer(settings.optimizer, self.model)
        self._autocast = settings.precision != "fp32"
        self._dtype = getattr(torch, DTYPES[settings.precision])
        # The smallest gradients of fp16 are zero without a scale.
        self._scaler = torch.amp.GradScaler(self._kind, enabled=settings.precision == "fp16")

    def step(self) -> None:
        """Train one step."""
        self._optimizer.zero_grad()
        with torch.autocast(self._kind, self._dtype if self._autocast else torch.bfloat16, enabled=self._autocast):
            loss = loss_of(self.model(**self._inputs))
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
