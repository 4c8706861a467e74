"""One training step according to the predictor's task list (predictor/core/workload/transformer_step.py).

In bf16: forward and backward on bf16 weights for every micro-batch, its gradients widened into fp32 or added to those
of earlier ones as soon as they are there, then norm and clipping of the fp32 gradients, AdamW on fp32 weights in one
fused kernel, and the new weights narrowed to bf16. In fp32 weights and gradients are there once.

Source: Megatron-LM core/distributed/param_and_grad_buffer.py (main_grad) and core/optimizer/optimizer.py,
Float16OptimizerWithFloat16Params.step. There the first micro-batch adds to zeros; here it overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from microbench.call import DTYPES, Tensor
from microbench.kernels.gradient_clipping import MAX_NORM
from microbench.steps.model import Decoder
from predictor.core.workload.run import TrainingRun

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
LEARNING_RATE, BETAS, ADAM_EPSILON, WEIGHT_DECAY = 1e-4, (0.9, 0.95), 1e-8, 0.1
SEED = 20_240_229
Mark = Callable[[str], None]


def unmarked(part: str) -> None:
    """Ignore the end of a part."""


class TrainingStep:
    """A model with everything that training it needs, and one step of it."""

    def __init__(
        self, run: TrainingRun, device: str, backend: Any = SDPBackend.FLASH_ATTENTION, capturable: bool = False
    ) -> None:
        """Make weights, optimizer states and tokens on the device from a fixed seed.

        Args:
            run: one that ``unsupported`` accepts.
            device: cpu or cuda.
            backend: of scaled_dot_product_attention; a shape that it cannot run is an error.
            capturable: whether the optimizer allows its step in a CUDA graph.
        """
        torch.manual_seed(SEED)
        self._micro_batches = run.num_micro_batches
        self._backend = backend
        self.decoder = Decoder(run, device, getattr(torch, DTYPES[run.precision]))
        self._weights = list(self.decoder.parameters())
        self._has_main_weights = run.precision != "fp32"
        self.main_weights = [w.detach().float() for w in self._weights] if self._has_main_weights else self._weights
        self._is_first = True
        if self._has_main_weights:
            for weight, main in zip(self._weights, self.main_weights, strict=True):
                main.grad = torch.zeros_like(main)
                weight.register_post_accumulate_grad_hook(self._widened_into(main.grad))
        self._optimizer = AdamW(
            self.main_weights,
            lr=LEARNING_RATE,
            betas=BETAS,
            eps=ADAM_EPSILON,
            weight_decay=WEIGHT_DECAY,
            fused=True,
            capturable=capturable,
        )
        shape = (run.num_micro_batches, run.call().tokens)
        self.ids, self.targets = (torch.randint(run.model.vocab_size, shape, device=device) for _ in range(2))
        self.loss: Tensor = None

    def _widened_into(self, gradient: Tensor) -> Callable[[Tensor], None]:
        """Return the hook that widens a weight's gradient into the fp32 one and frees its memory."""

        def widen(weight: Tensor) -> None:
            if self._is_first:
                gradient.copy_(weight.grad)
            else:
                gradient.add_(weight.grad)
            weight.grad = None

        return widen

    def parameter_names(self) -> list[str]:
        """Return the names of ``main_weights``."""
        return [name for name, _ in self.decoder.named_parameters()]

    def gradients(self) -> list[Tensor]:
        """Return the gradients of ``main_weights``, summed over the micro-batches so far."""
        return [weight.grad for weight in self.main_weights]

    def load(self, values: list[Tensor]) -> None:
        """Copy fp32 values into ``main_weights`` and the weights."""
        with torch.no_grad():
            for weight, main, value in zip(self._weights, self.main_weights, values, strict=True):
                weight.copy_(value)
                main.copy_(weight)

    def run(self, mark: Mark = unmarked) -> None:
        """Run one step; ``mark`` is called with a part's name after each launch of that part."""
        self.accumulate(mark)
        self.update()
        mark(OPTIMIZER)

    def accumulate(self, mark: Mark = unmarked) -> None:
        """Run all micro-batches forward and backward."""
        if not self._has_main_weights:
            for weight in self._weights:
                weight.grad = None
        with sdpa_kernel(self._backend):
            for index in range(self._micro_batches):
                self._is_first = index == 0
                loss = self.decoder(self.ids[index], self.targets[index])
                mark(FORWARD)
                (loss / self._micro_batches).backward()
                mark(BACKWARD)
        self.loss = loss.detach()

    def update(self) -> None:
        """Clip the gradients, step the optimizer and narrow the new weights."""
        clip_grad_norm_(self.main_weights, MAX_NORM)
        self._optimizer.step()
        if self._has_main_weights:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, self.main_weights)
