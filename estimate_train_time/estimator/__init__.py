"""Utilities of the documented interface."""
