"""One self-contained HTML page about a prediction: no script, no font and no picture from elsewhere."""
