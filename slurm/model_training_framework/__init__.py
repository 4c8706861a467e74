"""Launch training runs on Slurm with their time, memory and cost known beforehand, and survive preemption."""
