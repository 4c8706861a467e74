"""What every room of the predictor needs: errors, strict YAML, sizes, encodings, where bundled files lie."""
