"""Shared code of the scripts: packages of a checkout that is not installed, and errors in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if find_spec("llm_trainer") is None:
    sys.path[:0] = [str(ROOT), str(ROOT / "training"), str(ROOT / "slurm")]

BAD_INPUT, FAILED = 2, 1


def run(main: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None = None) -> int:
    """Run a script's work and return its exit status: 2 after bad input, 1 after a failure, each with one line."""
    from llm_trainer.exceptions import DataError, LLMTrainerError, ModelConfigurationError

    try:
        main(argv)
    except (ModelConfigurationError, DataError) as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_INPUT
    except (LLMTrainerError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on from the last checkpoint\n")
        return 130
    return 0


def say(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
