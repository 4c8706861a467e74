"""Use of a trained model: generation, inference and metrics."""
