"""HugeCTR's Python interface on TorchRec: recommenders that train on CPUs and GPUs alike.

Not to be installed beside NVIDIA's package of the same name.
"""
