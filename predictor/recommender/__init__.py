"""Recommenders: HugeCTR configurations, their steps and their sharding plans."""
