"""How fast logs are read for ``watch``, and in how much memory: ``python -m tests.bench_watch [--megabytes N]``.

It writes logs as Megatron-LM does and reads each in a process of its own; then it follows one that grows, at one poll a
second. The aims are 1 GB in under 20 s of CPU and 200 MB, and under 1 % of a core.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from predictor.watch.source import open_sources

ROOT = Path(__file__).resolve().parents[1]
STEP = (
    " [2026-03-02 {at}.120113] iteration {step:8d}/ 9000000 | consumed samples: {samples:12d} | elapsed time per "
    "iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 398.2 | learning rate: 2.997000E-04 | global batch "
    "size:   256 | lm loss: 3.104221E+00 | loss scale: 1.0 | grad norm: 0.412 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |\n"
)
TIMERS = "(min, max) time across ranks (ms):\n" + "".join(
    f"    {name + ' ':.<48}: (1220.40, 1251.93)\n"
    for name in (
        *("forward-backward", "forward-compute", "backward-compute", "batch-generator", "layernorm-grads-all-reduce"),
        *("embedding-grads-all-reduce", "all-grads-sync", "optimizer-copy-to-main-grad", "optimizer-clip-main-grad"),
        *("optimizer-count-zeros", "optimizer-inner-step", "optimizer-copy-main-to-model-params", "optimizer"),
    )
)
WARNING = (
    "/usr/local/lib/python3.12/dist-packages/torch/nn/modules/module.py:1827: FutureWarning: Using a non-full backward "
    "hook when the forward contains multiple autograd Nodes is deprecated and will be removed in future versions.\n"
)


def step_line(step: int) -> str:
    """Return the line of a step."""
    at = f"{step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
    return STEP.format(at=at, step=step, samples=256 * step, ms=4000 + step * 7919 % 100)


LOGS: dict[str, Callable[[int], str]] = {
    "steps with timers": lambda step: step_line(step) + TIMERS,
    "steps among warnings": lambda step: step_line(step) + 20 * WARNING,
    "nothing but steps": step_line,
}


def pieces(line: Callable[[int], str], size: int) -> Iterator[bytes]:
    """Return a log of a size, in pieces."""
    step = written = 0
    while written < size:
        piece = "".join(line(number) for number in range(step + 1, step + 1001)).encode()
        step, written = step + 1000, written + len(piece)
        yield piece


def read(path: Path) -> None:
    """Read a log whole, and print the number of events, CPU seconds and peak memory in MB."""
    began = time.process_time()
    count = sum(1 for source in open_sources([path], is_live=False) for _ in source.poll())
    used = time.process_time() - began
    print(count, f"{used:.2f}", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:.0f}")


def follow(path: Path, seconds: int) -> float:
    """Return the share of a core that following a log takes, which gains a step a second."""
    path.write_bytes(next(pieces(LOGS["steps with timers"], 1)))
    (source,) = open_sources([path])
    for _ in source.poll():
        pass
    used = 0.0
    for second in range(seconds):
        with path.open("a", encoding="utf-8") as stream:
            stream.write(LOGS["steps with timers"](1001 + second))
        began = time.process_time()
        for _ in source.poll():
            pass
        used += time.process_time() - began
        time.sleep(1)
    return used / seconds


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=20, help="for which a log is followed")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        read(arguments.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        for name, line in LOGS.items():
            with path.open("wb") as stream:
                stream.writelines(pieces(line, arguments.megabytes * 10**6))
            command = [sys.executable, "-m", "tests.bench_watch", "--read", str(path)]
            output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
            events, used, memory = output.split()
            size = path.stat().st_size / 1e6
            print(f"{name}: {size:,.0f} MB, {int(events):,} events in {used} s of CPU, {memory} MB")
        print(f"a live log: {follow(path, arguments.seconds):.3%} of a core at a poll a second")


if __name__ == "__main__":
    main()
