"""Telemetry of a run for ``predictor watch``: a file of JSON lines per rank, written at every optimizer step.

``recorder.Recorder`` writes it; the trainers of this project, Hugging Face's ``Trainer`` and Lightning's call it
through callbacks. Importing it loads no torch.
"""
