"""Replay of measured steps under changed operators, precisions, devices or links."""
