"""Set measured steps beside their predictions."""
