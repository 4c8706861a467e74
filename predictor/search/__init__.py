"""Find the fastest layout of a model on so many GPUs: every layout is bounded, the promising ones are replayed."""
