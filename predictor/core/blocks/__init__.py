"""Blocks of a model, a file each: sizes, and the rows of a forward pass in the order in which they run."""
