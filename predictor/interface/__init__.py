"""What other programs call."""
