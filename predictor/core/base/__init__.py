"""Shared utilities: errors, strict YAML, sizes, encodings, paths of bundled files."""
