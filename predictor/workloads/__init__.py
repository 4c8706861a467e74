"""What a training step must run: the model, how it is laid out over ranks, and the tasks of every stage."""
