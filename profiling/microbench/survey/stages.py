"""Parts of a survey of a GPU, in order of importance, and their deadlines.

Every stage is a command of its own, so that one which crashes, or loses the GPU, costs itself and no other. A stage
ends at a share of the survey's time; what it leaves goes to those after it. The next survey of the same results goes on
where this one stopped: it measures the shapes that this one left.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from microbench.kernels import kernel, of_recommenders
from microbench.provenance import now
from predictor.core.base.files import write_whole
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import KERNEL_MARK

OTHER_KERNEL = "cudnn"  # of attention, which comes with every torch for CUDA
FP8 = ("fp8", "fp8_block")
TESTS = "tests/gpu"
# A product in fp8, flash attention both ways, and the delay that separates kernels from launches: where one of these
# fails, the tables of this survey are read with care.
SMOKE_TESTS = f"{TESTS}/test_microbench_smoke_cuda.py"
DATASHEETS = "training/systems"
SUSTAINED_S = 10.0
GRACE_S = 8.0
SHORTEST_STAGE_S = 5.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One command of a survey.

    Attributes:
        name: for the summary.
        words: arguments of the interpreter; ``{minutes}`` is replaced by the remaining minutes of the stage.
        until: share of the survey's time at which it ends.
    """

    name: str
    words: tuple[str, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit status of a stage; None where its time was up or it was not begun."""

    stage: str
    status: int | None
    seconds: float


class Ranked(NamedTuple):
    """Operators of one precision by what predictions use: those of every transformer first, recommenders' last."""

    products: list[str]
    transformer: list[str]
    rest: list[str]


def attention() -> list[str]:
    """Return the operators of fused attention that most transformers run."""
    return [name for name, known in catalogue().items() if known.fused_attention and not hasattr(kernel(name), "RARE")]


def ranked(precision: str) -> Ranked:
    """Return every operator that exists in a precision, each once."""
    known = [name for name, operator in catalogue().items() if precision in operator.precisions]
    rare = [name for name in known if hasattr(kernel(name), "RARE")]
    products = [name for name in known if catalogue()[name].family == "linear"]
    products += [name for name in attention() if name in known]
    rest = rare + [name for name in known if of_recommenders(name)]
    return Ranked(products, [name for name in known if name not in (*products, *rest)], rest)


def stages(results: Path, code: Path, sweep: str, precision: str, offered: Sequence[str]) -> list[Stage]:
    """Return the stages of a survey.

    Args:
        results: folder of the GPU's tables.
        code: the checkout, or the kit's copy of it.
        sweep: whose shapes.
        precision: of the operators.
        offered: precisions that the GPU computes in; fp8 is measured where it is one.
    """
    out, cuda = ("--out", str(results)), ("--device", "cuda")
    options = (*cuda, "--sweep", sweep, "--budget-minutes", "{minutes}", *out)
    tests = ("-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", str(code))
    system = ("-m", "microbench", "system", *cuda, "--datasheet", str(code / DATASHEETS))

    def operators(title: str, names: Sequence[str], in_precision: str, until: float, *more: str) -> Stage:
        words = ("-m", "microbench", "operator", *names, "--precision", in_precision, *more, *options)
        return Stage(f"{title} in {in_precision}", words, until)

    here = ranked(precision)
    apart = [f"{name}{KERNEL_MARK}{OTHER_KERNEL}" for name in attention()]
    fp8 = [name for name in FP8 if name in offered]
    smoke, others = str(code / SMOKE_TESTS), str(code / TESTS)
    return [
        Stage("smoke tests", (*tests, smoke), 0.05),
        Stage("system and sustained clock", (*system, "--sustained-seconds", f"{SUSTAINED_S:g}", *out), 0.12),
        Stage("steps", ("-m", "microbench", "steps", *cuda, "--minutes", "{minutes}", *out), 0.33),
        operators("linear layers and attention", here.products, precision, 0.47, "--in-order"),
        operators(f"attention by {OTHER_KERNEL}", apart, precision, 0.58),
        operators("other operators of transformers", here.transformer, precision, 0.80),
        *(
            operators("linear layers", [*ranked(name).products, *ranked(name).transformer], name, until, "--in-order")
            for name, until in zip(fp8, (0.84, 0.88), strict=False)
        ),
        operators("operators of few models", here.rest, precision, 0.93),
        Stage("GPU tests", (*tests, others, "--ignore", smoke), 0.99),
    ]


Run = Callable[[Sequence[str], float], int | None]


def run_command(words: Sequence[str], seconds: float, log: Path) -> int | None:
    """Run the interpreter with these words; return its exit status, None where it had to be ended."""
    with log.open("ab") as stream:
        stream.write(f"\n$ python {' '.join(words)}\n".encode())
        stream.flush()
        process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            # SIGINT first: pytest then says which tests had failed, where SIGTERM ends it without a word.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                process.send_signal(number)
                try:
                    process.wait(GRACE_S / 3)
                    break
                except subprocess.TimeoutExpired:
                    continue
            return None
        finally:
            if process.poll() is None:  # this process was interrupted
                process.kill()


def survey(
    planned: Sequence[Stage],
    minutes: float,
    run: Run,
    summary: Path,
    say: Callable[[str], None],
    started: float | None = None,
    before: Sequence[Ended] = (),
) -> list[Ended]:
    """Run the stages within so many minutes; write how each ended as soon as it has, and return all.

    Args:
        planned: the stages, in order.
        minutes: for all of them.
        run: runs the interpreter with words within so many seconds.
        summary: the file that says how each ended.
        say: takes a line of progress.
        started: since when minutes count, of ``time.monotonic``; by default now.
        before: stages of the same run that ended earlier.
    """
    started = time.monotonic() if started is None else started
    ended = list(before)
    for stage in planned:
        begun = time.monotonic()
        left = started + 60.0 * minutes * stage.until - begun
        if left < SHORTEST_STAGE_S:
            ended.append(Ended(stage.name, None, 0.0))
            say(f"{stage.name}: not begun, no time left")
            continue
        budget = f"{max(0.0, left - GRACE_S) / 60.0:.3f}"
        status = run([word.replace("{minutes}", budget) for word in stage.words], left)
        ended.append(Ended(stage.name, status, round(time.monotonic() - begun, 1)))
        how = "its time was up" if status is None else "done" if status == 0 else f"exit status {status}"
        say(
            f"{stage.name}: {how} after {ended[-1].seconds:.0f} s, {(time.monotonic() - started) / 60.0:.1f} min in all"
        )
        document = {"ended": now(), "minutes": minutes, "stages": list(map(asdict, ended))}
        write_whole(summary, json.dumps(document, indent=1) + "\n")
    return ended
