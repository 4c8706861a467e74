"""Facts of a log that contradict the configuration it is judged by."""

from __future__ import annotations

from predictor.core.base.words import counted
from predictor.watch.events import Event, Start, Step
from predictor.watch.health import Expected

TOLERANCE = 0.005  # of counts that a log rounds to three digits
SAME = "the prediction is of another run, or the log is"


class Contradictions:
    """Takes the events of a run, and says what speaks against its being the predicted one."""

    def __init__(self, expected: Expected | None) -> None:
        """Take what is expected; None: nothing can contradict it but the log itself."""
        self._expected = expected
        self._said: dict[str, str] = {}
        self._last: int | None = None
        self._target: int | None = None

    def take(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Start):
            self._last, self._target = None, event.target_step or self._target
            self._compare("ranks", event.world_size, None if self._expected is None else self._expected.num_gpus)
        elif isinstance(event, Step) and event.rank is None:
            self._take_step(event)

    def _take_step(self, step: Step) -> None:
        if self._last is not None and step.number + step.steps <= self._last:
            self._said["order"] = (
                f"Step {step.number:,} follows step {self._last:,} without a restart: the logs may be of several runs."
            )
        self._last = step.number
        if self._target is not None and step.number > self._target:
            self._said["target"] = (
                f"The log goes on to step {step.number:,} of a run that ends at step {self._target:,}."
            )
        if self._expected is not None:
            self._compare("tokens", step.tokens, self._expected.tokens)
            self._compare("samples", step.samples, self._expected.samples)
            self._compare("sequence", step.sequence_length, self._expected.sequence_length)

    def _compare(self, key: str, logged: float | None, predicted: float | None) -> None:
        """Note a number of the log that is not the configuration's; the newest counts."""
        if not logged or not predicted:
            return
        if abs(logged / predicted - 1.0) <= TOLERANCE:
            self._said.pop(key, None)
            return
        words = {
            "ranks": f"{counted(round(logged), 'rank')}; the configuration is of {counted(round(predicted), 'GPU')}",
            "tokens": f"{logged:,.0f} tokens a step; the configuration has {predicted:,.0f}",
            "samples": f"{logged:,.0f} samples a step; the configuration has {predicted:,.0f}",
            "sequence": f"sequences of {logged:,.0f} tokens; the configuration has {predicted:,.0f}",
        }[key]
        self._said[key] = f"The log says {words}: {SAME}."

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the contradictions, a sentence each."""
        return tuple(self._said.values())
