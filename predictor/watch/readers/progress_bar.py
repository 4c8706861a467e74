"""Progress bars of tqdm: steps, and the time of each from a rate that tqdm smooths.

tqdm (``std.py``, ``class EMA``, smoothing 0.3) shows the quotient of two exponential means, of steps and of seconds
between updates. Both have the same weights, so that the latest seconds follow from the rates shown before and now. A
bar that is set rather than updated (Lightning's) shows the mean since it began; its whole seconds are read then.
"""

from __future__ import annotations

import re

from predictor.watch.readers import names
from predictor.watch.readers.log_format import GROUPS, Values, put
from predictor.watch.readers.names import NAMES, NUMBER

SMOOTHING = 0.3
FINEST_S = 20.0  # between readings of a bar that shows whole seconds: their error stays at 5 %
LONGEST_WORDS = 400  # bytes before a bar
BAR = re.compile(
    rb"\d{1,3}%\|[^|]{0,400}\|\s*(?P<n>\d{1,12})/(?P<total>\d{1,12})"
    rb" \[(?P<elapsed>[\d:]+)<[^,\]]*(?:,\s*(?P<rate>[\d.]+)(?P<unit>s/it|it/s))?(?P<after>[^\]]*)"
)
POSTFIX = re.compile(rb"[, ]([\w/. -]+?)=([^,\]]+)")


def clock_seconds(text: bytes) -> float:
    """Return what a bar's clock shows, in seconds.

    >>> clock_seconds(b"01:02:05")
    3725.0
    """
    total = 0.0
    for part in text.split(b":"):
        total = total * 60 + float(part or 0)
    return total


class SmoothedRate:
    """Times of single steps from a smoothed rate."""

    def __init__(self) -> None:
        """Begin with a new bar."""
        self._n = 0
        self._steps = self._seconds = 0.0  # exponential means, uncorrected
        self._is_first = True

    def seconds(self, n: int, shown: float | None) -> float | None:
        """Return seconds of one of the steps since the last reading.

        Args:
            n: steps done.
            shown: seconds of a step, as the bar has them.
        """
        new = n - self._n
        if new <= 0 or shown is None:
            return None
        self._n = n
        self._steps += SMOOTHING * (new - self._steps)
        seconds = shown * self._steps
        latest = (seconds - (1 - SMOOTHING) * self._seconds) / SMOOTHING
        self._seconds = seconds
        is_resumed, self._is_first = self._is_first and new > 1, False
        if is_resumed:  # a bar set forward to where a run goes on
            return None
        return latest / new if latest > 0 else shown


class TrainerBar:
    """Reads the bar of one training among bars of other work: the first without words before it, or with certain words.

    Attributes:
        words: a pattern of the words before the bar, with ``epoch`` where it counts within one, and other groups.
        is_smoothed: the bar is updated, not set.
    """

    def __init__(self, words: str = r"^[^\w]*$", is_smoothed: bool = True) -> None:
        """Take the words before the bar."""
        self._words = re.compile(words.encode())
        self._is_smoothed = is_smoothed
        self._total: int | None = None
        self._epoch = -1
        self._done = 0  # steps of earlier epochs
        self._is_complete = False
        self._begin_bar()

    def _begin_bar(self) -> None:
        self._is_complete = False
        self._rate = SmoothedRate()
        self._latest = (0, 0.0)  # number and clock of the last reading by the clock

    def __call__(self, line: bytes) -> Values | None:
        """Return the values of a bar; None of another one, or where it shows nothing new."""
        bar = BAR.search(line)
        before = line[max(0, bar.start() - LONGEST_WORDS) : bar.start()] if bar is not None else b""
        words = self._words.search(before)
        if bar is None or words is None:
            return None
        n, total = int(bar["n"]), int(bar["total"])
        groups = words.groupdict()
        epoch = int(groups.get("epoch") or 0)
        if self._total is None or epoch != self._epoch or (self._is_complete and total > self._total):
            # The next epoch, or a longer bar after one of preparations.
            self._total, self._epoch, self._done = total, epoch, 0
            self._begin_bar()
        if total != self._total or not n:
            return None
        if self._is_complete and n < total and "epoch" not in groups:  # a bar for each epoch, which it does not number
            self._done += total
            self._begin_bar()
        self._is_complete = n >= total
        values: Values = {NUMBER: float(epoch * total + self._done + n)}
        if "epoch" not in groups and not self._done and b"poch" not in bar.string[: bar.start()]:
            values[names.TARGET] = float(total)
        for name, text in groups.items():
            if name in GROUPS:
                put(values, GROUPS[name], text)
        for key, text in POSTFIX.findall(bar["after"]):
            if (meaning := NAMES.get(key.decode("utf-8", "replace").strip())) is not None and meaning.name != NUMBER:
                put(values, meaning, text.strip())
        return self._timed(values, n, bar)

    def _timed(self, values: Values, n: int, bar: re.Match[bytes]) -> Values | None:
        """Return the values with the time of a step."""
        if "seconds" in values:
            return values
        if n < self._latest[0]:  # another process
            self._begin_bar()
        if self._is_smoothed:
            self._latest = (n, 0.0)
            seconds = self._rate.seconds(n, _shown(bar))
        else:
            clock = clock_seconds(bar["elapsed"])
            before, began = self._latest
            if n == before or clock - began < FINEST_S:
                return None
            self._latest = (n, clock)
            seconds = (clock - began) / (n - before)
        if seconds is not None:
            values["seconds"] = seconds
        return values


def _shown(bar: re.Match[bytes]) -> float | None:
    try:
        rate = float(bar["rate"] or 0)
    except ValueError:
        return None
    if not rate:
        return None
    return 1 / rate if bar["unit"] == b"it/s" else rate
