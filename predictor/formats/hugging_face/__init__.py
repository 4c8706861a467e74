"""Hugging Face: config.json and models of the hub."""
