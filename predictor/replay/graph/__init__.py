"""Measured steps as records on disk: one rank's, all ranks' of a run, a run beside its prediction."""
