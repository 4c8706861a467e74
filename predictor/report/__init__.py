"""What a prediction says to people and machines: breakdown, text, JSON, comparison, page."""
