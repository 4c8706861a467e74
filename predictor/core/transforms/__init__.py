"""Transforms of a layer's rows: parallelism, precision, adapters, fusion, recomputation, CUDA graphs."""
