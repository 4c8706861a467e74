"""Run ``python -m microbench``."""

from microbench.cli import console

console()
