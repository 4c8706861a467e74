"""Report a prediction: breakdown, text, JSON, comparison, HTML page."""
