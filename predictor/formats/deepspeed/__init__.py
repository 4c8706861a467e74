"""DeepSpeed: JSON, read and written."""
