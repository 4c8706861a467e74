"""Recommenders: embedding tables that ranks share out, and a dense network that every rank holds."""
