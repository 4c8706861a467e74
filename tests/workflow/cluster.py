"""A throw-away Slurm of several nodes on one machine, on loopback: munge, one slurmctld, one slurmd per node.

Needs Debian's slurm-wlm and munge. Every process is started from here and stopped by its pid. Nodes share one kernel:
this proves launching, scheduling and recovery, never the speed of a network.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "scancel", "squeue", "sinfo", "scontrol", "sacct", "sacctmgr")
SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
START_S = 60.0
CONFIGURATION = """\
ClusterName=throwaway
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
MinJobAge=300
KillWait=3
OverTimeLimit=0
SlurmctldTimeout=30
SlurmdTimeout=60
GresTypes=gpu
NodeName=DEFAULT CPUs=4 RealMemory=16000 Gres=gpu:2 State=UNKNOWN
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}]
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=DEFAULT Nodes=ALL MaxTime=01:00:00 DefaultTime=00:10:00 State=UP
PartitionName=debug Default=YES PreemptMode=OFF
PartitionName=low PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=ungraceful PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high PriorityTier=10 PreemptMode=OFF
PartitionName=short MaxTime=00:02:00 PreemptMode=OFF
"""
# Two GPUs of a node, in name: slurmd wants a character device for each, and opens none.
GPUS = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"


def missing() -> list[str]:
    """Return the programs that this machine lacks."""
    path = os.pathsep.join((os.environ["PATH"], SYSTEM_PATH))
    return [name for name in (*DAEMONS, *COMMANDS) if shutil.which(name, path=path) is None]


def _free_ports(count: int) -> int:
    """Return the first of so many free ports in a row."""
    for first in range(21000, 30000, count + 1):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


@dataclass
class Cluster:
    """The cluster below a folder; use it in a ``with`` statement."""

    folder: Path
    nodes: int = 4
    environment: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Cluster:
        """Write the configuration, start every daemon and wait until all nodes are idle."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)  # munge refuses a folder that others may write
        port = _free_ports(self.nodes + 1)
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(
            folder=self.folder, host=host, port=port, first=port + 1, last=port + self.nodes, nodes=self.nodes,
            user=Path("~").expanduser().owner(),
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")
        (self.folder / "gres.conf").write_text(GPUS, encoding="utf-8")
        for name in ("state", "munge", "bin"):
            (self.folder / name).mkdir()
        self._shims()
        self.environment = os.environ | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": os.pathsep.join((str(self.folder / "bin"), os.environ["PATH"], SYSTEM_PATH)),
        }
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what still runs and stop every daemon."""
        self.stop()

    def _shims(self) -> None:
        """Put commands on PATH that know this cluster: Snakemake's job step forgets SLURM_CONF, but not PATH."""
        for name in COMMANDS:
            path = self.folder / "bin" / name
            program = shutil.which(name, path=SYSTEM_PATH)
            path.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {program} "$@"\n', encoding="utf-8")
            path.chmod(0o755)

    def _start(self) -> None:
        munge = self.folder / "munge"
        key = munge / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        self.run(
            "munged", "--force", f"--key-file={key}", f"--seed-file={munge}/seed", f"--socket={munge}/socket",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", "--num-threads=2",
        )  # fmt: skip
        self.start_controller()
        for node in self.names():
            (self.folder / f"spool-{node}").mkdir(exist_ok=True)
            self.run("slurmd", "-N", node)
        deadline = time.monotonic() + START_S
        while self.idle() < self.nodes:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.idle()} of {self.nodes} nodes came up; see {self.folder}/*.log")
            time.sleep(0.2)

    def names(self) -> list[str]:
        """Return the nodes' names."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command of the cluster and return what it printed."""
        done = subprocess.run(
            words,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def idle(self) -> int:
        """Return how many nodes are idle."""
        return len(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).split()))

    def jobs(self, *states: str) -> list[str]:
        """Return the jobs that are in the queue, all or those in some states."""
        wanted = ["-t", ",".join(states)] if states else []
        # A task of an array that was requeued is known by the array's id and its index only.
        return self.run("squeue", "-h", "-r", "-o", "%i", *wanted, check=False).split()

    def start_controller(self) -> None:
        """Start slurmctld, with the state that an earlier one saved."""
        self.run("slurmctld", "-i")

    def stop_controller(self) -> None:
        """Stop slurmctld; jobs go on."""
        self._stop(self.folder / "slurmctld.pid", "slurmctld")

    def kill_controller(self) -> None:
        """Kill slurmctld with SIGKILL: what it had not saved yet is lost."""
        os.kill(int((self.folder / "slurmctld.pid").read_text(encoding="ascii")), signal.SIGKILL)

    def stop(self) -> None:
        """Cancel every job and stop every daemon that this object started."""
        for job in self.jobs():
            self.run("scancel", job, check=False)
        deadline = time.monotonic() + 15.0
        while self.jobs() and time.monotonic() < deadline:
            time.sleep(0.3)
        for path in sorted(self.folder.glob("slurmd-*.pid")):
            self._stop(path, "slurmd")
        self.stop_controller()
        self._stop(self.folder / "munge" / "pid", "munged")

    def _stop(self, pid_file: Path, name: str) -> None:
        """Stop one daemon by its pid, if the pid is still that daemon's."""
        try:
            pid = int(pid_file.read_text(encoding="ascii"))
            command = Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return
        if command != name:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + 5.0
            while time.monotonic() < deadline:
                if not Path(f"/proc/{pid}").exists():
                    return
                time.sleep(0.1)
