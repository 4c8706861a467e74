"""Readers of logs: one table of formats, lines and records to events."""
