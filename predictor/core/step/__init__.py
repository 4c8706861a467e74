"""The time and the memory of one step: stages, host, overlap, composition."""
