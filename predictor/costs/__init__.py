"""What one piece of a training step costs: operators, collectives, hardware and the regressors that time them."""
