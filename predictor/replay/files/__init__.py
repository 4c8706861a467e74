"""Files of traces and of measured steps."""
