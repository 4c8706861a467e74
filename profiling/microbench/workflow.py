"""Keys of ``snakemake --config KEY=VALUE``; ``python -m microbench.workflow`` lists it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from microbench.collectives.launch import LAUNCHERS
from microbench.errors import MeasureError
from microbench.provenance import Closed

BACKENDS = {"cpu": "mpi", "auto": "mpi", "cuda": "nccl"}
AUTO, NONE = "auto", "none"


class Settings(Closed):
    """The workflow's configuration; every key has a default that works on a laptop."""

    system: str = Field(default="here", pattern=r"^[A-Za-z0-9-]+$", description="name of the machine: results/NAME")
    measurements: Path = Field(
        default=Path("../shared/measurements"),
        description="folder of measurement tables that fit_models fits, one folder per system",
    )
    sweep: str = Field(default="smoke", description="smoke, standard, full, recommender, or a YAML file")
    collective_sweep: str = Field(default="", description="the same for collectives (default: as sweep)")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="what operators run on")
    operators: str = Field(default="all", pattern=r"^[a-z_0-9 -]+$", description="names with blanks between, or all")
    collectives: str = Field(default="all", pattern=r"^[a-z_0-9 ]+$", description="names with blanks between, or all")
    backend: Literal["", "gloo", "mpi", "nccl", "nccl-tests"] = Field(
        default="", description="of collectives (default: nccl where device is cuda, else mpi)"
    )
    operator_jobs: int = Field(default=1, ge=1, le=64, description="jobs that share the operators' shapes")
    ranks_per_node: int = Field(
        default=2, ge=1, description="ranks of a collective on each node, where no resource says"
    )
    launcher: str = Field(
        default=AUTO,
        description=f"what starts the ranks of a collective: {', '.join(LAUNCHERS)}, with options behind it "
        "('srun --mpi=pmi2'), or auto: srun in a Slurm job, else mpiexec",
    )
    datasheet: str = Field(
        default=AUTO,
        description="sheet whose peaks and links the system takes: one of training/systems (Vista), a YAML file, none, "
        "or auto: the sheet in training/systems that is named after this GPU",
    )
    sbatch_without: str = Field(
        default="",
        pattern=r"^(-{1,2}[A-Za-z][a-z-]*( |$))*$",
        description="options that the Slurm plugin passes and the site does without, with blanks between: --export -p",
    )

    @field_validator("launcher")
    @classmethod
    def _is_launcher(cls, launcher: str) -> str:
        """Check that a launcher is one whose sizes and environment are known."""
        words = shlex.split(launcher)
        if not words or words[0] not in (AUTO, *LAUNCHERS) or (words[0] == AUTO and len(words) > 1):
            raise ValueError(
                f"expected {AUTO}, {', '.join(LAUNCHERS[:-1])} or {LAUNCHERS[-1]}; options go behind the name"
            )
        return launcher

    @property
    def collective_backend(self) -> str:
        """Return the backend of collectives: as configured, else what training uses on the device."""
        return self.backend or BACKENDS[self.device]

    @property
    def message_sweep(self) -> str:
        """Return the sweep of collectives."""
        return self.collective_sweep or self.sweep

    def ranks(self, resources: Mapping[str, Any]) -> str:
        """Return the options that say how many ranks a job has, as requested from the scheduler, and what starts them.

        >>> Settings(launcher="ibrun").ranks({"nodes": 4, "tasks": 8}), Settings().ranks({})
        ('--nodes 4 --ranks-per-node 2 --launcher ibrun', '--nodes 1 --ranks-per-node 2')
        """
        nodes = int(resources.get("nodes", 1))
        tasks = int(resources.get("tasks") or 0)
        per_node = int(resources.get("tasks_per_node") or (tasks // nodes if tasks else self.ranks_per_node))
        launcher = "" if self.launcher == AUTO else f" --launcher {shlex.quote(self.launcher)}"
        return f"--nodes {nodes} --ranks-per-node {per_node}{launcher}"

    def sheet(self, systems: Path) -> str:
        """Return the option that names the data sheet of the described system; empty: none.

        Args:
            systems: folder of system files that state data sheets.

        Raises:
            MeasureError: there is no such sheet.
        """
        if self.datasheet == NONE:
            return ""
        path = systems if self.datasheet == AUTO else systems / f"{self.datasheet}.yaml"
        if not path.exists():
            path = Path(self.datasheet)
        if not path.exists():
            known = ", ".join((AUTO, NONE, *sorted(file.stem for file in systems.glob("*.yaml"))))
            raise MeasureError(f"--config datasheet={self.datasheet}: no such file; expected {known} or a YAML file")
        return f"--datasheet {shlex.quote(str(path))}"


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Validate Snakemake's configuration.

    Raises:
        MeasureError: a key is unknown or has a value it may not have; one line a key.
    """
    try:
        return Settings.model_validate(dict(config))
    except ValidationError as error:
        known = ", ".join(Settings.model_fields)
        said = "; ".join(
            f"{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise MeasureError(f"--config {said}. Keys: {known}") from None


def main() -> int:
    """Print every key, its default and its meaning."""
    for name, field in Settings.model_fields.items():
        sys.stdout.write(f"{name}={field.default}  {field.description}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
