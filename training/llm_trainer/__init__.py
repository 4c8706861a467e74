"""Train, evaluate and sample decoder-only language models: the workload that is both predicted and really run.

Importing it loads no torch; ``llm_trainer.config`` and ``llm_trainer.exceptions`` work without. Do not install it
beside another distribution whose import name is ``llm_trainer``: Python would import whichever comes first.
"""
