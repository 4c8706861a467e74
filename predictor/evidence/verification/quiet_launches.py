"""Launches on a machine that others may use: the reference kernel before, between and after, and repetitions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from predictor.evidence.verification.configurations import Configured
from predictor.evidence.verification.drift import FILE, Reference, drift, is_disturbed, reference_now, write_reference
from predictor.evidence.verification.launching import RunFailed, Runner, launch
from predictor.replay.files.measured_run import read_measured_run
from predictor.replay.files.record_model import RecordError

AGAIN = ".again"  # behind the name of a launch's folder: a repetition that is not kept yet


@dataclass(slots=True)
class QuietLaunches:
    """Times the reference kernel beside launches, and repeats those during which the machine was busy.

    Attributes:
        runner: of the launches.
        again: most repetitions of a launch.
        say: takes a line of progress.
        known: device and µs of the last time, by processes: after one launch is before the next.
        is_blind: the reference kernel could not be timed.
    """

    runner: Runner
    again: int
    say: Callable[[str], None]
    known: dict[int, tuple[str, float]] = field(default_factory=dict)
    is_blind: bool = False

    def launch(self, configuration: Configured, config: Path, place: Path) -> None:
        """Run a configuration into a folder; of disturbed launches the quietest is kept.

        Raises:
            RunFailed, RecordError, OSError: the first launch failed, or left no whole record.
        """
        reference = self._launch(configuration, config, place)
        slowest = drift(reference, configuration.workload.system.hardware)
        tries = 1
        while reference is not None and slowest is not None:
            write_reference(place, reference.model_copy(update={"tries": tries}))
            if not is_disturbed(slowest):
                return
            told = f"{configuration.name}: the machine was {slowest:.2f} × slower than while it was measured"
            if tries > self.again:
                self.say(told)
                return
            self.say(f"{told}; once more")
            tries += 1
            target = place.with_name(place.name + AGAIN)
            try:
                other = self._launch(configuration, config, target)
                slower = drift(other, configuration.workload.system.hardware)
                if slower is not None and slower < slowest:
                    shutil.rmtree(place)
                    target.rename(place)
                    reference, slowest = other, slower
            except (RunFailed, RecordError) as error:
                self.say(f"{configuration.name}: the launch before is kept: {error}")
            finally:
                shutil.rmtree(target, ignore_errors=True)

    def _launch(self, configuration: Configured, config: Path, place: Path) -> Reference | None:
        """Run once; return the reference kernel beside it, None where it is not known or nothing to compare with."""
        ranks = configuration.num_gpus
        has_reference = configuration.workload.system.hardware.reference_us is not None
        before = (self.known.get(ranks) or self._time(ranks)) if has_reference else None
        (place / FILE).unlink(missing_ok=True)  # of an earlier launch
        launch(self.runner, configuration.workload.program.module, config, place, ranks)
        read_measured_run(place)
        after = self._time(ranks) if has_reference else None
        self.known = {} if after is None else {ranks: after}
        if before is None or after is None:
            return None
        return Reference(device=after[0], processes=ranks, before_us=before[1], after_us=after[1])

    def _time(self, ranks: int) -> tuple[str, float] | None:
        """Return device and µs of the reference kernel; None where it cannot be timed, said once."""
        if self.is_blind:
            return None
        try:
            return reference_now(self.runner, ranks)
        except RunFailed as error:
            self.is_blind = True
            self.say(f"drift of the machine is not known: {error}")
            return None
