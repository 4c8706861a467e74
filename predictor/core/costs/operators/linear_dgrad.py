"""Gradient of a linear layer's input: (tokens, outputs) @ (outputs, inputs), the first of ``linear_gradients``."""

from predictor.core.costs.operator import DATA_GRADIENT, linear_gradient

OPERATOR = linear_gradient(DATA_GRADIENT, source="2·m·k·n FLOP; dX = dY · W")
