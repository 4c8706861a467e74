"""NeMo: YAML of NeMo 1, recipes of NeMo 2, YAML of AutoModel."""
