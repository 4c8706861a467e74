"""Completion scripts, a file for each shell, made from what the command line's parser knows."""
