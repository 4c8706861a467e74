"""Runs of Hugging Face's Trainer: its own arguments, and those of the tools on top of it."""
