"""A grid of parameters: its cost (DRY_RUN, the default), then run here (LOCAL) or through Slurm (SLURM).

python slurm/examples/grid_search.py dry_run
python slurm/examples/grid_search.py local FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from model_training_framework import ExecutionMode, GridSearchResult, ModelTrainingFramework, ParameterGrid

HERE = Path(__file__).resolve().parent


def main(mode: ExecutionMode, folder: Path) -> GridSearchResult:
    """Try two widths at two learning rates, and one deeper model."""
    wide = ParameterGrid("wide", "how wide, how fast")
    wide.add_parameter("model.hidden_size", [64, 128])
    wide.add_parameter("training.learning_rate", [1e-3, 3e-3])
    deep = ParameterGrid("deep")
    deep.add_parameter("model.num_layers", [4])

    framework = ModelTrainingFramework(HERE.parents[1])
    return framework.run_grid_search(
        [wide, deep],
        base_config_path=HERE / "experiment.yaml",
        execution_mode=mode,
        output_dir=folder,
        max_concurrent_jobs=2,
    )


if __name__ == "__main__":
    mode = ExecutionMode(sys.argv[1] if len(sys.argv) > 1 else "dry_run")
    result = main(mode, Path(sys.argv[2] if len(sys.argv) > 2 else "experiments"))
    if mode is not ExecutionMode.DRY_RUN:  # which has printed
        print(result)
