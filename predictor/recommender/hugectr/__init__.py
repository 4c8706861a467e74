"""HugeCTR's JSON configuration: read here once, for predictions and for the trainer alike."""
