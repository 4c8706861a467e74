"""Wall time of a long training among failures, repairs, restarts and checkpoints: expected, and drawn."""
