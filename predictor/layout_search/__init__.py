"""Find the fastest layout of a model on a given number of GPUs: branch and bound over layouts."""
