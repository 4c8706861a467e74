"""Workloads: the model, its layout over ranks, and the tasks of every stage."""
