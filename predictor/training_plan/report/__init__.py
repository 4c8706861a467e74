"""Report a plan as text and JSON."""
