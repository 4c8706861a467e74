"""HugeCTR's update rules for the dense network.

Source: HugeCTR v3.0, adam_optimizer.cu, momentum_sgd_optimizer.cu, nesterov_optimizer.cu, sgd_optimizer.cu; of a later
version adagrad_optimizer.cu. Gradients are divided by the loss scale before all else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hugectr.dense.parameters import views_like
from hugectr.operator_scopes import optimizer_scope
from predictor.recommender.workload.optimizer import Optimizer, OptimizerKind

Tensors = list[torch.Tensor]


class DenseOptimizer:
    """One optimizer over all dense weights.

    Attributes:
        states: (states, weights) float32: Adam's first and second moments, otherwise one or none, in the order of an
            optimizer-state file.
    """

    def __init__(self, optimizer: Optimizer, weights: Sequence[torch.Tensor]) -> None:
        """Make the states; Adam's and momentum's begin at 0, AdaGrad's at ``initial``."""
        self.optimizer = optimizer
        self._weights = [weight.detach() for weight in weights]
        elements = sum(weight.numel() for weight in weights)
        device = weights[0].device if weights else torch.device("cpu")
        initial = optimizer.initial if optimizer.kind is OptimizerKind.ADAGRAD else 0.0
        self.states = torch.full((optimizer.kind.num_states, elements), initial, device=device)
        self._views = [views_like(state, self._weights) for state in self.states]

    def step(self, gradients: Sequence[torch.Tensor], learning_rate: float, step: int, scale: float = 1.0) -> None:
        """Update all weights.

        Args:
            gradients: in the order of the weights; they are overwritten.
            learning_rate: of this step.
            step: counted from 1, which Adam's bias correction takes.
            scale: that the loss was multiplied by.
        """
        grads = list(gradients)
        if not grads:
            return
        with torch.no_grad():
            if scale != 1.0:
                torch._foreach_mul_(grads, 1.0 / scale)
            with optimizer_scope(self.optimizer.kind):
                self._update(grads, learning_rate, step)

    def _update(self, grads: Tensors, learning_rate: float, step: int) -> None:
        match self.optimizer.kind:
            case OptimizerKind.SGD:
                torch._foreach_add_(self._weights, grads, alpha=-learning_rate)
            case OptimizerKind.ADAM:
                self._adam(grads, learning_rate, step)
            case OptimizerKind.MOMENTUM_SGD:
                self._momentum(grads, learning_rate)
            case OptimizerKind.NESTEROV:
                self._nesterov(grads, learning_rate)
            case OptimizerKind.ADAGRAD:
                self._adagrad(grads, learning_rate)

    def _adam(self, grads: Tensors, rate: float, step: int) -> None:
        """Kingma and Ba 2015, end of section 2: the bias corrections are in the rate, epsilon beside the root."""
        given = self.optimizer
        moments, squares = self._views
        rate *= (1.0 - given.beta2**step) ** 0.5 / (1.0 - given.beta1**step)
        torch._foreach_lerp_(moments, grads, 1.0 - given.beta1)
        torch._foreach_mul_(squares, given.beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1.0 - given.beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, given.epsilon)
        torch._foreach_addcdiv_(self._weights, moments, roots, -rate)

    def _momentum(self, grads: Tensors, rate: float) -> None:
        """Velocity v' = momentum · v - rate · g; weight w' = w + v'."""
        (velocities,) = self._views
        torch._foreach_mul_(velocities, self.optimizer.momentum)
        torch._foreach_add_(velocities, grads, alpha=-rate)
        torch._foreach_add_(self._weights, velocities)

    def _nesterov(self, grads: Tensors, rate: float) -> None:
        """Velocity v' = momentum · v - rate · g; weight w' = w - momentum · v + (1 + momentum) v'."""
        (velocities,) = self._views
        momentum = self.optimizer.momentum
        torch._foreach_add_(self._weights, velocities, alpha=-momentum)
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, grads, alpha=-rate)
        torch._foreach_add_(self._weights, velocities, alpha=1.0 + momentum)

    def _adagrad(self, grads: Tensors, rate: float) -> None:
        """Sum s' = s + g²; weight w' = w - rate · g / (sqrt(s') + epsilon)."""
        (sums,) = self._views
        torch._foreach_addcmul_(sums, grads, grads, 1.0)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, self.optimizer.epsilon)
        torch._foreach_addcdiv_(self._weights, grads, roots, -rate)
