"""Faults from outside of the ranks: signals, busy processes, the kernel's CPU quota and its shaping of the network.

A quota and a network of the run's own need root on Linux with cgroups and namespaces; without, those runs are skipped.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import time
from contextlib import suppress

from model_training_framework.health.process import cgroup_mounts

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000  # sched.h
PERIOD_US = 100_000  # of a quota; the kernel's default and Kubernetes'
BURST_BYTES = 1 << 17  # of the shaped loopback: two of its packets, 64 KiB each
GRADIENT_BYTES = 6.4e5  # of the model in training.py, about


class NotPossibleError(Exception):
    """This machine does not let us inject a fault."""


def own_namespaces() -> bool:
    """Give this process and its children a network and a host name of their own; return whether that is possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUTS | CLONE_NEWNET):
        return False
    return subprocess.run(["ip", "link", "set", "lo", "up"], check=False).returncode == 0


class Pulses:
    """Stops a process for a share of the time."""

    def __init__(self, pid: int, share: float, period_s: float) -> None:
        self._pid, self._stop_s, self._go_s = pid, share * period_s, (1 - share) * period_s
        self._until = 0.0
        self._is_stopped = False

    def poll(self) -> None:
        """Stop or continue, where it is time."""
        now = time.monotonic()
        if now >= self._until:
            self._is_stopped = not self._is_stopped
            self._until = now + (self._stop_s if self._is_stopped else self._go_s)
            self._signal(signal.SIGSTOP if self._is_stopped else signal.SIGCONT)

    def close(self) -> None:
        """Let it run."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)


def _spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


class Busy:
    """Busy processes pinned to each core."""

    def __init__(self, per_core: int) -> None:
        cores = sorted(os.sched_getaffinity(0)) * per_core
        context = multiprocessing.get_context("fork")
        self._processes = [context.Process(target=_spin, args=(core,)) for core in cores]
        for process in self._processes:
            process.start()

    def poll(self) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.join()


class Quota:
    """A cgroup whose CPU time can be limited; below the one that this process is in."""

    def __init__(self) -> None:
        mount = next(iter(cgroup_mounts("cpu")), None)
        if mount is None:
            raise NotPossibleError("no cgroup with the CPU controller is mounted")
        self._is_v2 = mount.is_v2
        self._folder = mount.folders[0] / f"faults-{os.getpid()}"
        try:
            self._folder.mkdir()
            if not (self._folder / ("cpu.max" if self._is_v2 else "cpu.cfs_quota_us")).is_file():
                raise NotPossibleError("the cgroup has no CPU quota")
        except OSError as error:
            raise NotPossibleError(f"{self._folder}: {error.strerror}") from error

    def take(self, pid: int) -> None:
        """Put a process into it."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def limit(self, cores: float) -> None:
        """Limit its processes together."""
        quota = max(1000, int(cores * PERIOD_US))
        if self._is_v2:
            (self._folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota))

    def poll(self) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Remove it, once its processes have ended."""
        for _ in range(100):
            try:
                self._folder.rmdir()
            except OSError:
                time.sleep(0.02)
            else:
                return


class Shaped:
    """The run's loopback at a lower bandwidth (tbf of tc)."""

    def __init__(self, bytes_per_s: float) -> None:
        rate = f"{max(1, int(8 * bytes_per_s / 1000))}kbit"
        shaping = ["root", "tbf", "rate", rate, "burst", str(BURST_BYTES), "latency", "2s"]
        done = subprocess.run(
            ["tc", "qdisc", "add", "dev", "lo", *shaping], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise NotPossibleError(f"tc: {done.stderr.strip()}")

    def poll(self) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """It ends with the run's namespace."""


def shaped_for(extra_s: float, ranks: int) -> Shaped:
    """Shape the network so that the ring all-reduce of the gradients takes so much longer.

    Each of the ranks sends 2 · (ranks - 1) / ranks of the gradients; all of it passes the one loopback.
    """
    return Shaped(2 * (ranks - 1) * GRADIENT_BYTES / extra_s)


Outside = Pulses | Busy | Quota | Shaped
