"""From a file of the user to a training run: sections, short form, checks, presets, readers of other tools."""
