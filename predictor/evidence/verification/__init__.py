"""Compare measured steps with their predictions."""
