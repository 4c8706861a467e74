"""Run the MPI binaries of nccl-tests, one process per GPU, and hand on their rows as they are printed.

Build them once: ``make MPI=1 MPI_HOME=… CUDA_HOME=… NCCL_HOME=…`` (nccl-tests, README.md). Each process is started as
``python -m microbench.collectives.nccl_tests BINARY …``, which pins its GPU and then becomes the binary.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from microbench.collectives.bandwidth import rank_bytes, total_bytes
from microbench.collectives.errors import CollectiveError, last_lines
from microbench.collectives.launch import launch_command, local_rank, run_lines
from microbench.collectives.nccl_output import CONCLUDED, VERSION, NcclRow, check, columns_of, failure_in, row_of
from predictor.costs.collectives import Topology

BINARIES = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "point_to_point": "sendrecv_perf",
}
DATATYPES = {"fp32": "float", "fp16": "half", "bf16": "bfloat16"}
FOLDER_VARIABLE = "NCCL_TESTS_HOME"


def binary(collective: str, folder: Path | None) -> str:
    """Return the path of a collective's binary: in ``folder``, in $NCCL_TESTS_HOME/build, or on PATH.

    Raises:
        CollectiveError: it is nowhere; the message says how to build it.
    """
    name = BINARIES[collective]
    home = os.environ.get(FOLDER_VARIABLE)
    places = [folder] if folder else [Path(home) / "build", Path(home)] if home else []
    for place in places:
        if os.access(place / name, os.X_OK):
            return str(place / name)
    found = None if folder else shutil.which(name)
    if found is None:
        where = ", ".join(map(str, places)) or "PATH"
        raise CollectiveError(
            f"no {name} in {where}; build nccl-tests with MPI=1 and set {FOLDER_VARIABLE}, "
            "or name its folder with --nccl-tests"
        )
    return found


def visible_gpus(environment: dict[str, str]) -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES counts them.

    Raises:
        CollectiveError: there is no GPU.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [gpu.strip() for gpu in listed.split(",") if gpu.strip()]
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise CollectiveError("no GPU here: nvidia-smi does not run; on a CPU use --backend gloo or mpi") from None
    return [str(index) for index, line in enumerate(done.stdout.splitlines()) if line.startswith("GPU")]


def pinned(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment in which a process sees its own GPU only.

    Raises:
        CollectiveError: there are fewer GPUs than ranks on this node.
    """
    gpus, rank = visible_gpus(environment), local_rank(environment)
    own_only = len(gpus) == 1 and "SLURM_LOCALID" in environment  # srun --gpus-per-task bound it already
    if rank >= len(gpus) and not own_only:
        raise CollectiveError(f"rank {rank} of this node has no GPU: {len(gpus)} visible; lower --ranks-per-node")
    chosen = gpus[0] if own_only else gpus[rank]
    return environment | {"CUDA_VISIBLE_DEVICES": chosen, "NCCL_TESTS_DEVICE": "0"}


def doubling_series(sizes: Iterable[int]) -> list[list[int]]:
    """Return sizes in series that double, which is what -f 2 can run at once: one series per odd part.

    >>> doubling_series([1024, 1536, 2048, 3072])
    [[1024, 2048], [1536, 3072]]
    """
    series: dict[int, list[int]] = {}
    for size in sorted(sizes):
        series.setdefault(size // (size & -size), []).append(size)
    return list(series.values())


@dataclass(frozen=True, slots=True)
class NcclTests:
    """Which binaries, how they are started, and how long they may be silent."""

    folder: Path | None
    launcher: str | None
    precision: str
    iterations: int
    silence_s: float

    def command(self, collective: str, topology: Topology, sizes: list[int]) -> list[str]:
        """Return the command line that measures sizes of one rank, each the double of the one before."""
        low, high = (total_bytes(collective, size, topology.ranks) for size in (sizes[0], sizes[-1]))
        options = f"-b {low} -e {high} -f 2 -g 1 -t 1 -n {self.iterations} -w 5 -c 1 -d {DATATYPES[self.precision]}"
        wrapper = [sys.executable, "-m", "microbench.collectives.nccl_tests", binary(collective, self.folder)]
        return [*launch_command(topology, self.launcher), *wrapper, *options.split()]

    def rows(self, collective: str, topology: Topology, sizes: list[int]) -> Iterator[tuple[int, NcclRow, str]]:
        """Run and yield (size of one rank, row, kernel) as they are printed.

        Raises:
            CollectiveError: missing, failed, hung, wrong elements, or ended before its summary.
        """
        columns: list[str] | None = None
        kernel, concluded, said = "nccl-tests", False, list[str]()
        for line in run_lines(self.command(collective, topology, sizes), self.silence_s):
            said.append(line)
            if failure_in(line):
                raise CollectiveError(f"{BINARIES[collective]} failed: {last_lines(said)}")
            version = VERSION.match(line)
            kernel = f"nccl-tests {version[1]}, nccl {version[2]}" if version else kernel
            columns = columns_of(line) or columns
            row = row_of(line, columns) if columns else None
            if row is not None:
                yield rank_bytes(collective, check(row).total_bytes, topology.ranks), row, kernel
            concluded |= CONCLUDED in line
        if not concluded:
            raise CollectiveError(f"{BINARIES[collective]} ended before its summary: {last_lines(said, 1)}")


def main() -> int:
    """Pin this process's GPU and become the binary."""
    try:
        environment = pinned(dict(os.environ))
        os.execve(sys.argv[1], sys.argv[1:], environment)
    except (CollectiveError, OSError) as error:
        sys.stdout.write(f"ABORT: {error}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
