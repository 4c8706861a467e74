"""LLM Foundry: YAML."""
