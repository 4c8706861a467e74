"""From a checked configuration to a run on an open system."""
