"""Configuration files to training runs: sections, short form, checks, presets, readers of other tools."""
