"""Read configurations of litgpt."""
