"""Run a configuration of the predictor with the trainer, and record its steps, operators and collectives."""
