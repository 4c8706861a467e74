"""Timelines: spans, dependency graphs, pipeline schedules and their replay, trace files."""
