"""Precisions of traced operators: costs, casts, memory, sensitivity, and the plans that choose between them."""
