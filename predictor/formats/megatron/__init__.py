"""Megatron-LM: arguments, read and written."""
