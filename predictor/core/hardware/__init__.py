"""Machines as data: GPUs, links, host memory, power, each number with its source."""
