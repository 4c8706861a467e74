"""Start of an experiment's processes: shell code for srun, torchrun, mpirun, or a command that starts its own.

Whichever starts them, the job script learns the same: ``.started`` once one runs, ``.done.CLAIM.RANK`` of each task
that ended with 0, ``.saved.CLAIM.RANK`` of each that ended with 75, to be resumed.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from model_training_framework.config import ExperimentConfig, SLURMConfig

# A signal reaches the whole process group: the trap keeps this shell, so that it can return the command's status.
TRAP = "trap : USR1 TERM"
# A site whose nodes' names lead to the wrong network sets its own address in slurm.environment. Ports lie below the
# kernel's ephemeral range, which begins at 32768 (Linux, ip_local_port_range), so that no client holds one by chance.
RENDEZVOUS = {
    "MASTER_ADDR": '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
    "MASTER_PORT": "$((20000 + SLURM_JOB_ID % 12000))",
}
SRUN_RANK = "${SLURM_PROCID:-0}"
# Open MPI, MPICH and its descendants. Sources: mpirun(1) of Open MPI 4; Hydra, "Environment variables".
MPI_RANK = "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}"
MPI_LOCAL_RANK = "${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}"


def tasks_per_node(experiment: ExperimentConfig) -> int:
    """Return the tasks per node that Slurm is asked for: one where torchrun starts the processes of its node."""
    slurm = experiment.slurm or SLURMConfig()
    return 1 if slurm.launcher == "torchrun" else slurm.ntasks_per_node


def num_tasks(experiment: ExperimentConfig) -> int:
    """Return how many tasks mark their end."""
    slurm = experiment.slurm or SLURMConfig()
    return 1 if slurm.launcher == "none" else slurm.nodes * tasks_per_node(experiment)


def launch(experiment: ExperimentConfig, folder: Path, project: Path, command: str) -> str:
    """Return shell code that starts the command on the nodes of its job, in its container if any.

    A step also where there is one task: Slurm tells the steps of a job when its GraceTime begins, and not its script.
    Source: slurm.conf(5), GraceTime.

    Args:
        experiment: its ``slurm`` section says who starts the processes.
        folder: of the experiment.
        project: folder that the command starts in.
        command: with its placeholders filled in.
    """
    slurm = experiment.slurm or SLURMConfig()
    own = {name: value for name, value in RENDEZVOUS.items() if name not in slurm.environment}
    if slurm.launcher == "mpirun":
        exports = [f"export {name}={value}" for name, value in own.items()]
        exports.append(f"export RANK={MPI_RANK} LOCAL_RANK={MPI_LOCAL_RANK} WORLD_SIZE={num_tasks(experiment)}")
        words = _in_container(slurm, folder, project, _task(folder, command, exports, "RANK"))
        return f"mpirun -n {num_tasks(experiment)} {words}"
    if slurm.launcher == "none":
        return _in_container(slurm, folder, project, _task(folder, command, [], "SLURM_PROCID"))
    is_parallel = slurm.nodes * slurm.ntasks_per_node > 1 or slurm.launcher == "torchrun"
    exports = []
    if slurm.launcher == "torchrun":
        command = _torchrun(experiment, folder, command, experiment.processes_per_node)
    elif is_parallel:
        exports = ["export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"]
    words = _in_container(slurm, folder, project, _task(folder, command, exports, "SLURM_PROCID"))
    if slurm.container and slurm.container_runtime == "pyxis":
        words = f"{_pyxis(slurm.container, folder, project)} {words}"
    # srun takes CPUs per task from its own option only (since Slurm 22.05). The first task that ends leaves the
    # others the grace period to save.
    cpus = f" --cpus-per-task={slurm.cpus_per_task}" if slurm.cpus_per_task else ""
    wait_s = math.ceil(experiment.preemption.grace_period_seconds)
    step = f"srun --kill-on-bad-exit=0 --wait={wait_s}{cpus} {words}"
    if not is_parallel or not own:
        return step
    return " ".join(["env", *(f"{name}={value}" for name, value in own.items()), step])


def _task(folder: Path, command: str, exports: list[str], rank: str) -> str:
    """Return the shell code of one task, whose rank is in an environment variable, as one word."""
    mark = shlex.quote(str(folder)) + f'/."$mark.${{claim_number:-0}}.${{{rank}:-0}}"'
    lines = [TRAP, f": >{shlex.quote(str(folder / '.started'))}", *exports]
    lines += [
        "(",
        TRAP,
        command,
        ")",
        "status=$?",
        "case $status in 0) mark=done ;; 75) mark=saved ;; *) mark= ;; esac",
    ]
    lines += [f'[ -z "$mark" ] || : >{mark}', 'exit "$status"']
    return f"bash -c {shlex.quote(chr(10).join(lines))}"


def _in_container(slurm: SLURMConfig, folder: Path, project: Path, words: str) -> str:
    if not slurm.container or slurm.container_runtime == "pyxis":
        return words
    folders = f"--bind {shlex.quote(str(folder))} --bind {shlex.quote(str(project))}"
    return f"apptainer exec {folders} --pwd {shlex.quote(str(project))} {shlex.quote(slurm.container)} {words}"


def _pyxis(image: str, folder: Path, project: Path) -> str:
    """Return srun's options of Pyxis. Source: github.com/NVIDIA/pyxis, README, "Usage"."""
    mounts = ",".join(f"{path}:{path}" for path in dict.fromkeys((folder, project)))
    options = {"image": image, "mounts": mounts, "workdir": str(project)}
    return " ".join(f"--container-{name}={shlex.quote(value)}" for name, value in options.items())


def _torchrun(experiment: ExperimentConfig, folder: Path, command: str, processes: int) -> str:
    """Return shell code that runs the command under torchrun, in so many processes of this node.

    torchrun turns every exit status of a worker into 1, ends itself at USR1, and gives its workers sessions of their
    own, which a signal to the group does not reach. So a worker that ended with 75 leaves ``.saved.CLAIM.RANK``, and
    USR1 is passed on. At TERM torchrun itself tells its workers, and leaves them 30 s.
    Source: torch/distributed/elastic/multiprocessing/api.py of torch 2.13.
    """
    slurm = experiment.slurm or SLURMConfig()
    saved = shlex.quote(str(folder / ".saved.")) + '"${claim_number:-0}"'
    # A worker that torchrun starts again after one that saved must not train: the job ends.
    lines = [
        f"if compgen -G {saved}'.*' >/dev/null; then exit 75; fi",
        "trap : TERM",
        *("(", command, ")"),
        "status=$?",
        f'[ "$status" -ne 75 ] || : >{saved}".$RANK"',
        'exit "$status"',
    ]
    options = [
        '--nnodes="${SLURM_NNODES:-1}"',
        f"--nproc-per-node={processes}",
        f"--max-restarts={slurm.max_restarts}",
        "--rdzv-backend=c10d",
        '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"',
        '--rdzv-id="${SLURM_JOB_ID:-$$}.${SLURM_RESTART_COUNT:-0}"',
        "--no-python",
    ]
    words = " ".join(["torchrun", *options, "bash", "-c", shlex.quote("\n".join(lines))])
    children = 'cat /proc/"$agent"/task/*/children 2>/dev/null || pgrep -P "$agent"'
    return "\n".join(
        [
            f"(trap '' USR1; exec {words}) &",
            "agent=$!",
            f'tell() {{ for pid in $({children}); do kill -USR1 -- -"$pid"; done; }}',
            "trap 'told=1; tell' USR1",
            "trap told=1 TERM",
            "told=1",
            'while [ -n "$told" ]; do told= && wait "$agent"; status=$?; done',
            f"if [ \"$status\" -ne 0 ] && compgen -G {saved}'.*' >/dev/null; then status=75; fi",
            'exit "$status"',
        ]
    )


def launch_here(experiment: ExperimentConfig, folder: Path, setup: str, command: str) -> str:
    """Return shell code that runs the command on this machine, in as many processes as a job would have.

    Modules and containers belong to the cluster and are left out, and processes of several nodes run here.
    """
    slurm = experiment.slurm or SLURMConfig()
    if slurm.launcher == "none":
        return "\n".join([setup, TRAP, command])
    rendezvous = "export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 12000))"
    if slurm.launcher == "torchrun":
        return "\n".join(
            [setup, rendezvous, _torchrun(experiment, folder, command, slurm.nodes * experiment.processes_per_node)]
        )
    tasks = slurm.nodes * slurm.ntasks_per_node
    if tasks == 1:
        return "\n".join([setup, TRAP, command])
    inner = shlex.quote(f"{TRAP}\n{command}")
    return f"""\
{setup}
{rendezvous} WORLD_SIZE={tasks}
trap again=1 USR1 TERM
pids=() status=0
for rank in {{0..{tasks - 1}}}; do
    RANK=$rank LOCAL_RANK=$rank bash -c {inner} &
    pids+=($!)
done
for pid in "${{pids[@]}}"; do
    again=1
    while [ -n "$again" ]; do again= && wait "$pid"; code=$?; done
    if [ "$code" -gt "$status" ]; then status=$code; fi
done
exit "$status"
"""
