"""Measure how measuring does: ``python -m tests.bench_profile``. Prints; timing decides no test.

Takes the steps of ``make profile-smoke`` in a folder of its own: how long they take, how well the system that they
publish predicts held-out shapes beside how noisy its rows are, and how far apart two measurements of the same shapes
come out. Where a throw-away Slurm can be started, what a job costs there that does nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from microbench.table import read_tables
from tests.workflow.cluster import Cluster, missing

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT, ROOT / "profiling", ROOT / "training")
SHAPES = 20
JOBS = 4
STEP_S = 1800.0
# Snakemake is beside this interpreter; an environment that is not activated is not on PATH.
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
NOTHING = 'rule all:\n    input: expand("mark{number}", number=range(int(config["jobs"])))\n\n'
NOTHING += 'rule nothing:\n    output: touch("mark{number}")\n    log: "log{number}"\n    shell: "true"\n'


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    here: str
    goal: str = ""


def run(*words: object, environment: dict[str, str] | None = None) -> tuple[float, str]:
    """Run a command; return its seconds and its standard output.

    Raises:
        SystemExit: it failed; with its last line.
    """
    command = [str(word) for word in words]
    variables = (environment or os.environ) | {"PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=STEP_S, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise SystemExit(f"{' '.join(command[1:4])} ended with {done.returncode}: {last}")
    return time.perf_counter() - started, done.stdout


def python(*words: object) -> tuple[float, str]:
    """Run one of the project's commands, and say so first: each may take minutes."""
    print(f"python -m {words[0]} {words[1]} …", file=sys.stderr, flush=True)
    return run(sys.executable, "-m", *words)


def noise(results: Path, kind: str) -> float:
    """Return the median over tables of how far their samples spread: IQR ÷ median."""
    spreads = [table.provenance.sessions[-1].relative_spread for table in read_tables(results, kind)]
    return statistics.median(spread for spread in spreads if spread is not None)


def smoke(results: Path) -> Iterator[Row]:
    """Profile this CPU, publish and judge it."""
    system = results / "system.yaml"
    described, _ = python("microbench", "system", "--device", "cpu", "--name", "bench", "--out", results)
    words = ("all", "--sweep", "smoke", "--out", results)
    operators, _ = python("microbench", "operator", *words, "--device", "cpu")
    collectives, _ = python("microbench", "collective", *words, "--backend", "mpi")
    source = ("--system", system, "--measurements", results)
    fitted, said = python("fitting", "fit", *source, "--out", results / "published")
    _, table = python("fitting", "held-out", system, results)
    print(table)
    yield Row("smoke profile: operators and collectives", f"{operators + collectives:.0f} s", "180 s")
    yield Row("  operators", f"{operators:.0f} s")
    yield Row("  collectives, two ranks", f"{collectives:.0f} s")
    yield Row("  describing and fitting, beside them", f"{described + fitted:.0f} s")
    scores = json.loads(said.splitlines()[-1])
    for kind, name in (("operators", "operator"), ("collectives", "collective")):
        mape = scores[kind]["mape"]
        yield Row(f"held-out MAPE, {kind}", "none fitted" if mape is None else f"{mape:.1f} %", "10 %")
        yield Row("  noise of their rows (IQR ÷ median)", f"{noise(results, name):.1%}".replace("%", " %"))


def repeatability() -> Row:
    """Measure the same shapes twice."""
    words = ("--device", "cpu", "--sweep", "smoke", "--shapes", SHAPES, "--json")
    found = json.loads(python("microbench", "repeatability", *words)[1])
    return Row(f"the same {SHAPES} shapes twice, median gap", f"{100 * found['median_gap']:.1f} %")


def slurm(folder: Path) -> Iterator[Row]:
    """Time jobs that do nothing: here, and through a throw-away Slurm where one can be started."""
    lacking = missing()
    if lacking or shutil.which("snakemake", path=PATH) is None:
        print(f"no Slurm can be started here ({', '.join(lacking) or 'snakemake'} missing): its overhead is not timed")
        return
    (folder / "Nothing.smk").write_text(NOTHING, encoding="utf-8")

    def seconds(environment: dict[str, str], jobs: int, *options: str) -> float:
        place = folder / f"{jobs}{'-'.join(options)[-5:]}"
        place.mkdir()
        print(f"{jobs} jobs that do nothing …", file=sys.stderr, flush=True)
        words = ("snakemake", "-s", folder / "Nothing.smk", "-d", place, *options, "--config", f"jobs={jobs}")
        return run(*words, environment=environment)[0]

    here = seconds(os.environ | {"PATH": PATH}, 1, "--cores", "1")
    with Cluster(folder / "cluster") as cluster:
        shims, _, rest = cluster.environment["PATH"].partition(os.pathsep)
        environment = cluster.environment | {"PATH": os.pathsep.join((shims, PATH, rest))}
        profile = ("--profile", str(ROOT / "slurm"))
        one, several = (seconds(environment, jobs, *profile) for jobs in (1, JOBS))
    yield Row("overhead of a job through Slurm", f"{one - here:.1f} s")
    yield Row("  one job that does nothing, through Slurm", f"{one:.1f} s")
    yield Row("  the same without Slurm", f"{here:.1f} s")
    yield Row(f"  {JOBS} such jobs at once, through Slurm", f"{several:.1f} s")


def load() -> str:
    """Return how busy the host was in the last minute."""
    return f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"


def main() -> None:
    """Print the table."""
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        rows = [*smoke(Path(folder) / "results"), repeatability(), *slurm(Path(folder))]
    rows.append(Row("load of the host, before and after", f"{before}; {load()}"))
    print(f"{'':44}{'here':>12}  {'goal':>8}")
    for row in rows:
        print(f"{row.name:44}{row.here:>12}  {row.goal:>8}".rstrip())


if __name__ == "__main__":
    main()
