"""Survey of a GPU in a given number of minutes: the kit, the run on the GPU machine, and the archive of results."""
