"""The dense network of a recommender: layers, initial weights, gradients over ranks, optimizers and files."""
