"""Reinforcement learning: the update of the trained model is read; rollout and scoring are named in notes."""
