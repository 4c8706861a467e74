"""Measured steps as records on disk: what one rank recorded, a run of all its ranks, a run beside its prediction."""
