"""One file per operator; each defines ``OPERATOR``."""
