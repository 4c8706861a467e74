"""Data sets in HugeCTR's formats: read, write and generate."""
