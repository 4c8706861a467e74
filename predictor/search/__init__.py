"""Find the fastest layout of a model on so many GPUs: whichever may be the fastest is looked at more closely."""
