"""Embedding tables that ranks share out: TorchRec shards and exchanges, the rows and their optimizers are kept here."""
