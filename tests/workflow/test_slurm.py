"""Profiling through a real Slurm of four nodes, undisturbed and disturbed; ``make test-slurm`` runs this.

After every fault the same command finishes the work, and the tables hold the calls that an undisturbed run's hold.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.workflow.cluster import Cluster
from tests.workflow.conftest import ROOT, Rows, Workflow, rows, until

pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("default")]

RUN_S = 180.0
ROWS_S = 120.0
ATTEMPTS = 3
SWEEPS = ROOT / "profiling/microbench/collectives/sweeps.yaml"
FEW = (
    *("profile_all", "--config", "operators=gelu softmax"),
    *("collectives=all_reduce all_gather", "collective_sweep=few.yaml"),
)
OPTIONS = ("--profile", str(ROOT / "slurm"), "--slurm-init-seconds-before-status-checks", "2")
TABLES = "results/here/collective/*.csv"


def write_sweep(path: Path, **changes: int) -> None:
    """Write the smoke sweep of collectives with changes."""
    path.write_text(yaml.safe_dump(yaml.safe_load(SWEEPS.read_text())["smoke"] | changes))


def in_folder(folder: Path, cluster: Cluster) -> Workflow:
    """Return a workflow that runs through the cluster, with a sweep that a fault can hit the middle of.

    Its collectives take some ten seconds: asking a busy host's queue for the job must not outlast the job.
    """
    write_sweep(folder / "few.yaml", sizes_per_octave=1, samples=10, block_us=10000, most_calls=5000)
    return Workflow(folder, cluster.environment, OPTIONS)


@pytest.fixture
def slurm(cluster: Cluster, tmp_path: Path) -> Iterator[Workflow]:
    """Return a scratch folder to run Snakemake in, through the cluster."""
    found = in_folder(tmp_path, cluster)
    yield found
    found.close()
    for job in cluster.jobs():
        cluster.run("scancel", job, check=False)
    until(lambda: not cluster.jobs(), 30, "an empty queue")
    for node in cluster.names():
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    until(lambda: cluster.idle() == cluster.nodes, 60, "all nodes idle")


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return the rows of a run that nothing disturbs."""
    run = in_folder(tmp_path_factory.mktemp("undisturbed"), cluster)
    try:
        assert run.run(*FEW, seconds=RUN_S) == 0, run.output
    finally:
        run.close()
    return rows(run.results)


def measured(workflow: Workflow) -> int:
    """Return how many collective calls are on the disk."""
    return sum(max(0, path.read_text().count("\n") - 1) for path in workflow.folder.glob(TABLES))


def job_of(cluster: Cluster, rule: str) -> list[str]:
    """Return the running jobs of a rule; the plugin says the rule in the job's comment."""
    lines = cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%A %k", check=False).splitlines()
    return [line.split()[0] for line in lines if rule in line.split(maxsplit=1)[-1].split("_")[:2]]


def wait_for_rows(cluster: Cluster, workflow: Workflow) -> str:
    """Return the job that measures collectives, once it has stored some."""
    found: list[str] = []

    def is_measuring() -> bool:
        found[:] = job_of(cluster, "collectives") if measured(workflow) > 1 else []
        return bool(found)

    until(is_measuring, ROWS_S, "a running job with rows of collectives")
    return found[0]


def finish(workflow: Workflow, words: tuple[str, ...], first: int | None) -> int:
    """Type the same command until it succeeds; return how often that was needed."""
    for attempt in range(ATTEMPTS):
        if first == 0:
            return attempt
        first = workflow.run(*words, seconds=RUN_S)
    assert first == 0, workflow.output
    return ATTEMPTS


def test_whole_smoke_profile(slurm: Workflow) -> None:
    started = time.monotonic()
    assert slurm.run("profile_all", seconds=560) == 0, slurm.output
    print(f"profile_all with the smoke sweep through Slurm: {time.monotonic() - started:.0f} s")
    collectives = {row[0].partition("_fp32")[0] for row in rows(slurm.results) if row[0].count("x")}
    assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "point_to_point"} <= collectives
    assert {shape[1:] for name, shape, *_ in rows(slurm.results) if name.startswith("all_reduce")} == {
        (1, 2),
        (2, 1),
        (2, 2),
    }


# As TACC's ibrun: nodes and tasks of the job from Slurm's variables, ranks per node from its own.
IBRUN = """#!/bin/sh
: "${SLURM_JOB_NODELIST:?}" "${SLURM_JOB_NUM_NODES:?}" "${TACC_TASKS_PER_NODE:?}"
[ "$1" = -np ] && [ -z "$SLURMD_NODENAME$SLURM_LOCALID" ] || exit 3
echo "TACC:  Starting up job $SLURM_JOB_ID"
ranks=$2
shift 2
exec srun --mpi=pmi2 --nodes=$((ranks / TACC_TASKS_PER_NODE)) --ntasks-per-node=$TACC_TASKS_PER_NODE "$@"
"""


def test_ranks_are_started_by_the_sites_launcher(slurm: Workflow, tmp_path: Path) -> None:
    ibrun = tmp_path / "bin" / "ibrun"
    ibrun.parent.mkdir()
    ibrun.write_text(IBRUN)
    ibrun.chmod(0o755)
    slurm.environment = slurm.environment | {"PATH": os.pathsep.join((str(ibrun.parent), slurm.environment["PATH"]))}
    words = ("results/here/done/collective/all_reduce", "--config", "sweep=few.yaml", "launcher=ibrun")
    assert slurm.run(*words, "sbatch_without=--export", seconds=RUN_S) == 0, slurm.output
    assert {shape[1:] for _, shape, *_ in rows(slurm.results)} == {(1, 2), (2, 1), (2, 2)}


def test_options_of_srun_reach_the_job(slurm: Workflow) -> None:
    launcher = "launcher=srun --mpi=pmi2 --cpu-bind=none --kill-on-bad-exit=1"
    words = ("results/here/done/collective/all_gather", "--config", "sweep=few.yaml", launcher)
    assert slurm.run(*words, seconds=RUN_S) == 0, slurm.output
    assert {shape[1:] for _, shape, *_ in rows(slurm.results)} == {(1, 2), (2, 1), (2, 2)}


def test_overhead_of_a_job(slurm: Workflow) -> None:
    (slurm.folder / "Nothing.smk").write_text(
        'rule nothing:\n    output: touch("mark")\n    log: "nothing.log"\n    shell: "true"\n'
    )
    slurm.options = ("-s", str(slurm.folder / "Nothing.smk"), *slurm.options)
    started = time.monotonic()
    assert slurm.run("mark") == 0, slurm.output
    print(f"a job that does nothing, through Slurm: {time.monotonic() - started:.1f} s")


def test_job_cancelled_from_outside(slurm: Workflow, cluster: Cluster, undisturbed: Rows) -> None:
    process = slurm.start(*FEW)
    cluster.run("scancel", wait_for_rows(cluster, slurm))
    finish(slurm, FEW, slurm.wait(process, RUN_S))
    assert rows(slurm.results) == undisturbed


def test_job_past_its_time_limit(slurm: Workflow) -> None:
    write_sweep(slurm.folder / "slow.yaml", sizes_per_octave=1, samples=70, block_us=30000, most_calls=5000)
    # On the command line --set-resources stands in for all of the profile's.
    resources = [f"collective:{one}" for one in ("runtime=1", "mpi=srun", "nodes=2", "tasks_per_node=2")]
    words = ("results/here/done/collective/all_reduce", "--config", "sweep=slow.yaml", "--set-resources", *resources)
    finish(slurm, words, slurm.wait(slurm.start(*words), 300))
    assert "Error in rule collective" in slurm.output, "one minute was enough: the test proves nothing"
    assert "logs/here/collective.all_reduce.log" in slurm.output, "a failed job is reported with its log"
    assert len(rows(slurm.results)) == 3 * 13  # topologies × sizes


def test_a_failing_command_is_not_tried_with_more_time(slurm: Workflow, cluster: Cluster) -> None:
    earlier = set(cluster.run("squeue", "-h", "-t", "all", "-o", "%A").split())
    assert slurm.run("results/here/done/operator/gelu", "--config", "sweep=absent.yaml", seconds=RUN_S) == 1
    assert "error: absent.yaml is not a sweep" in slurm.output
    jobs = [line.split() for line in cluster.run("squeue", "-h", "-t", "all", "-o", "%A %l").splitlines()]
    limits = [limit for job, limit in jobs if job not in earlier]
    assert 2 <= len(limits) <= 3
    assert len(set(limits)) == 1, f"a retry asks for another time: {limits}"


def test_node_down(slurm: Workflow, cluster: Cluster, undisturbed: Rows) -> None:
    process = slurm.start(*FEW)
    job = wait_for_rows(cluster, slurm)
    node = cluster.run("squeue", "-h", "-j", job, "-o", "%B").strip()
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    finish(slurm, FEW, slurm.wait(process, RUN_S))
    assert rows(slurm.results) == undisturbed


def test_controller_restarted(slurm: Workflow, cluster: Cluster, undisturbed: Rows) -> None:
    process = slurm.start(*FEW)
    wait_for_rows(cluster, slurm)
    cluster.stop_controller()
    time.sleep(12)
    cluster.start_controller()
    finish(slurm, FEW, slurm.wait(process, RUN_S))
    assert rows(slurm.results) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_snakemake_interrupted(slurm: Workflow, cluster: Cluster, undisturbed: Rows, number: signal.Signals) -> None:
    process = slurm.start(*FEW)
    wait_for_rows(cluster, slurm)
    os.killpg(process.pid, number)
    slurm.wait(process, 60)
    finish(slurm, FEW, None)
    assert rows(slurm.results) == undisturbed
