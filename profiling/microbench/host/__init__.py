"""Launches of kernels on this host: what one costs, alone and with other ranks, without GPU and profiler."""
