"""Rules between keys of a configuration, each with the way out in its message."""
