"""Monitoring of a live or finished run beside its prediction: log readers, change detection, explanations, reports.

Events flow one way: sources (growing files) → readers (lines to events) → monitor (events to ``Health``) → text, page,
JSON lines, Prometheus metrics. Nothing here writes to the run or imports the framework that trains.
"""
