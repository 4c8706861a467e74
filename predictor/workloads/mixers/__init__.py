"""Token mixers beside plain attention, one per file: sizes, parameters and work of each."""
