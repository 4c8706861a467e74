"""Run the MPI binaries of nccl-tests, one process per GPU, and yield their rows as they are printed.

Build them once: ``make MPI=1 MPI_HOME=… CUDA_HOME=… NCCL_HOME=…`` (nccl-tests, README.md). Each process is started as
``python -m microbench.collectives.nccl_tests BINARY …``, which pins its GPU and then becomes the binary.

Where a binary can write JSON (-J; not in 2.17.1, but in 2.17.9) its digits are taken from there, once it has ended; the
rows that it prints are kept until then and stored should it fail. Else they are stored as they are printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from microbench.collectives.bandwidth import total_bytes
from microbench.collectives.errors import CollectiveError, OutOfMemoryError, last_lines
from microbench.collectives.gpu import visible_gpus
from microbench.collectives.launch import KEPT_LINES, launch_command, launch_environment, local_rank, run_lines
from microbench.collectives.nccl_output import (
    COUNTED,
    FAILURE,
    LIBRARY,
    OUT_OF_MEMORY,
    VERSION,
    NcclRow,
    check,
    check_type,
    columns_of,
    concluded_in,
    device_in,
    most_bytes_in,
    parse_json,
    row_of,
    unmarked,
)
from microbench.collectives.topologies import Seat, check_seats
from microbench.timing import NCCL_TESTS_ITERATIONS, NCCL_TESTS_WARM_UP
from predictor.core.costs.collectives import Topology

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
HELP_S = 60.0


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
    path = None if folder else shutil.which(name)
    if path is None:
        where = ", ".join(map(str, places)) or "PATH"
        raise CollectiveError(
            f"no {name} in {where}; build nccl-tests with MPI=1 and set {FOLDER_VARIABLE}, "
            "or name its folder with --nccl-tests"
        )
    return path


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


@cache
def writes_json(path: str) -> bool:
    """Return whether a binary offers -J; it prints its options before it looks for MPI or a GPU."""
    try:
        done = subprocess.run([path, "--help"], capture_output=True, timeout=HELP_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"-J,--output_file" in done.stdout


def check_layout(devices: list[tuple[int, str]], topology: Topology) -> None:
    """Check that the ranks listed by a run are those started, one GPU each, on the requested nodes.

    Raises:
        CollectiveError: they are not; without MPI every process would measure itself alone.
    """
    ranks = sorted(rank for rank, _ in devices)
    if not devices:
        return
    if ranks != list(range(topology.ranks)):
        raise CollectiveError(
            f"nccl-tests lists the ranks {', '.join(map(str, ranks))}, and {topology.ranks} were started: "
            "build it with MPI=1 against the launcher's own MPI"
        )
    seats = [Seat(rank, len(devices), host) for rank, host in devices]
    check_seats(seats, topology.nodes, topology.gpus_per_node)


@dataclass(slots=True)
class Output:
    """Output of a binary, as far as it is printed.

    Attributes:
        name: of the binary.
        topology: of the ranks that were started.
        out_of_memory: NCCL or CUDA said so, and no row came after it.
        most_bytes: the largest S that the run goes up to, where it says that the GPU's memory limits it.
    """

    name: str
    topology: Topology
    columns: list[str] | None = None
    devices: list[tuple[int, str]] = field(default_factory=list)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    version: str = ""
    library: str = ""
    concluded: bool = False
    out_of_memory: bool = False
    most_bytes: int | None = None

    @property
    def kernel(self) -> str:
        """Return the versions, as far as they were printed."""
        return f"nccl-tests {self.version}".strip() + (f", nccl {self.library}" if self.library else "")

    def take(self, line: str) -> NcclRow | None:
        """Read a line; return its row, None for any other line.

        Raises:
            CollectiveError: it says that the run failed or computed wrong values, or the ranks are not those requested.
        """
        line = unmarked(line)
        self.said.append(line)
        self.out_of_memory |= OUT_OF_MEMORY.search(line) is not None
        if FAILURE.search(line):
            raise CollectiveError(f"{self.name} failed: {last_lines(self.said)}")
        check_type(line)
        self.most_bytes = self.most_bytes or most_bytes_in(line)
        if version := VERSION.match(line):
            self.version, self.library = version.groups()
        if library := LIBRARY.match(line):
            self.library = self.library or library[1]
        if device := device_in(line):
            self.devices.append(device)
        self.concluded |= concluded_in(line)
        self.columns = columns_of(line) or self.columns
        row = row_of(line, self.columns) if self.columns else None
        if row is not None:
            check_layout(self.devices, self.topology)
            self.out_of_memory = False  # NCCL recovered from its warning
        return row and check(row)

    def check_memory(self, totals: Collection[int]) -> None:
        """Check that the run goes up to some of these S.

        Raises:
            OutOfMemoryError: it said that memory keeps it below all of them.
        """
        if totals and self.most_bytes is not None and self.most_bytes < min(totals):
            raise OutOfMemoryError(
                f"{self.name} goes up to {self.most_bytes} bytes due to memory limitation", self.most_bytes
            )


@dataclass(frozen=True, slots=True)
class NcclTests:
    """Which binaries, how they are started, and how long they may be silent.

    Attributes:
        scratch: folder that this process shares with the first rank, for -J's file; None: its text is read.
        say: takes a line for the user.
    """

    folder: Path | None
    launcher: str | None
    precision: str
    silence_s: float
    scratch: Path | None = None
    say: Callable[[str], None] = lambda text: None

    def command(self, collective: str, topology: Topology, sizes: list[int], document: Path | None) -> list[str]:
        """Return the command line that measures sizes of one rank that double."""
        low, high = (total_bytes(collective, size, topology.ranks) for size in (sizes[0], sizes[-1]))
        options = f"-b {low} -e {high} -f 2 -g 1 -t 1 -n {NCCL_TESTS_ITERATIONS} -w {NCCL_TESTS_WARM_UP} -c 1"
        wrapper = [sys.executable, "-m", "microbench.collectives.nccl_tests", binary(collective, self.folder)]
        words = [*launch_command(topology, self.launcher), *wrapper, *options.split(), "-d", DATATYPES[self.precision]]
        return [*words, "-J", str(document)] if document else words

    def rows(self, collective: str, topology: Topology, sizes: list[int]) -> Iterator[tuple[int, NcclRow, str]]:
        """Run and yield (size of one rank, row, kernel) as they are printed, of the requested sizes only.

        Raises:
            OutOfMemoryError: the binary said that memory limits it, or ran out.
            CollectiveError: missing, failed, hung, wrong elements, ended before its summary, or left a size out.
        """
        output, held = Output(BINARIES[collective], topology), list[NcclRow]()
        absent = {total_bytes(collective, size, topology.ranks): size for size in sizes}
        least = min(absent)

        def results(rows: Iterable[NcclRow]) -> Iterator[tuple[int, NcclRow, str]]:
            for row in rows:
                size = absent.pop(row.total_bytes, None)
                if size is not None:
                    yield size, row, output.kernel

        with ExitStack() as stack:
            document = self._document(collective, stack)
            command = self.command(collective, topology, sizes, document)
            environment = launch_environment(topology, self.launcher)
            try:
                for line in run_lines(command, self.silence_s, environment):
                    row = output.take(line)
                    output.check_memory([least])  # going on, it would crash, or print a size of its own
                    if row is not None and document is None and COUNTED in (output.columns or ()):
                        yield from results([row])
                    elif row is not None:
                        held.append(row)
            except (CollectiveError, KeyboardInterrupt, SystemExit) as error:
                # What was judged right when it was printed stays, however the run ended.
                yield from results(row for row in held if row.wrong is not None)
                if output.out_of_memory and type(error) is CollectiveError:
                    raise OutOfMemoryError(str(error)) from None
                raise
            if document is not None:
                held = self._read(document, held)
            yield from results(row for row in held if output.concluded or row.wrong is not None)
        if not output.concluded:
            raise CollectiveError(f"{output.name} ended before its summary: {last_lines(output.said, 1)}")
        output.check_memory(absent)
        if absent:
            raise CollectiveError(
                f"{output.name} printed no row of {', '.join(map(str, absent))} bytes, which was requested, and "
                f"did not say why; it last said: {last_lines(output.said)}"
            )

    def _document(self, collective: str, stack: ExitStack) -> Path | None:
        """Return where -J may write; a private folder, since the file holds the whole environment."""
        path = binary(collective, self.folder)
        if self.scratch is None:
            return None
        if not writes_json(path):
            self.say(f"{path} has no option -J (nccl-tests before 2.17.9): reading its text, which has fewer digits")
            return None
        try:
            return Path(stack.enter_context(TemporaryDirectory(dir=self.scratch, prefix=".nccl-tests-"))) / "run.json"
        except OSError as error:
            raise CollectiveError(f"{self.scratch}: {error.strerror}; nccl-tests writes its JSON there") from None

    def _read(self, document: Path, printed: list[NcclRow]) -> list[NcclRow]:
        """Return the rows that -J wrote; the printed rows where the document is missing or torn."""
        try:
            rows = parse_json(document.read_text(encoding="utf-8", errors="replace"))
        except (OSError, CollectiveError) as error:
            self.say(f"no JSON ({error}): using the printed rows, which have fewer digits")
            return printed
        if [row.total_bytes for row in rows] != [row.total_bytes for row in printed]:
            raise CollectiveError(f"{document.name} and the printed table disagree about the sizes that were measured")
        return rows


def main() -> int:
    """Pin this process's GPU and become the binary."""
    try:
        # NCCL alone tells its version before 2.17, and that memory ran out where it allocates the buffers.
        environment = {"NCCL_DEBUG": "WARN"} | pinned(dict(os.environ))
        os.execve(sys.argv[1], sys.argv[1:], environment)
    except (CollectiveError, OSError) as error:
        sys.stdout.write(f"ABORT: {error}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
