"""Gradient of a linear layer's weight: (inputs, tokens) @ (tokens, outputs), the second of ``linear_gradients``."""

from predictor.core.costs.operator import WEIGHT_GRADIENT, linear_gradient

OPERATOR = linear_gradient(WEIGHT_GRADIENT, source="2·m·k·n FLOP; dW = Xᵀ · dY, which sums over tokens")
