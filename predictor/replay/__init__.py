"""Replay of measured steps: what changes when operators, precisions, devices or links do."""
