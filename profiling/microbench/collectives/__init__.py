"""Measure collectives: one file per backend, one command that launches ranks and stores their rows."""
