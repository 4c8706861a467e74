"""A batch of jobs: submitted, followed to their end; submitted again, only what is missing or failed runs.

python slurm/examples/slurm_batch.py FOLDER        # where sbatch is; FOLDER is one that all nodes see
python slurm/examples/slurm_batch.py FOLDER local  # here, without Slurm
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from model_training_framework.config import ConfigurationManager, ExecutionMode, ExperimentConfig
from model_training_framework.slurm import BatchSubmissionResult, GitManager, SLURMLauncher

HERE = Path(__file__).resolve().parent
POLL_S = 5.0


def experiments() -> list[ExperimentConfig]:
    """Return four experiments that differ in their seeds."""
    manager = ConfigurationManager(HERE)
    return [
        ExperimentConfig.from_dict(
            manager.compose_configs(
                HERE / "experiment.yaml", parameter_overrides={"experiment_name": f"copy-seed-{seed}", "seed": seed}
            )
        )
        for seed in range(4)
    ]


def main(folder: Path, mode: ExecutionMode) -> BatchSubmissionResult:
    """Submit them, at most two at a time, and wait until all have ended."""
    launcher = SLURMLauncher(output_dir=folder, git_manager=GitManager(HERE.parents[1]), project_root=HERE.parents[1])
    batch = launcher.submit_experiment_batch(experiments(), mode, max_concurrent_jobs=2)
    print(batch)
    waiting = set(batch.job_ids.values())
    while waiting:
        states = launcher.get_job_statuses(waiting)
        for job_id, state in states.items():
            if state.is_final:
                print(f"job {job_id}: {state}")
                waiting.discard(job_id)
        if waiting:
            time.sleep(POLL_S)
    return batch


if __name__ == "__main__":
    mode = ExecutionMode(sys.argv[2] if len(sys.argv) > 2 else "slurm")
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "experiments"), mode)
