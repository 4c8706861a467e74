"""Megatron-Bridge: recipes in Python and YAML."""
