"""Layouts of a training run over ranks, one file per axis: data (sharding), tensor and pipeline."""
