"""Shell scripts: words, expansion, conditions."""
