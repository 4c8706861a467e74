"""Settings of ``--set``, and the answer of a change."""

from __future__ import annotations

import re
from typing import NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.replay.whatif.traced_step import TracedStep

REMOVE = "remove"
LARGEST_FACTOR = 1e6
# KEY or KEY:PATTERN, then = or *=; a pattern may hold both of these signs, so the last one counts.
FORM = re.compile(r"(?P<key>[a-z_]+(?:\.[A-Za-z_]+)?)(?::(?P<pattern>.+?))?(?P<sign>\*?=)(?P<value>[^=]*)")


class Setting(NamedTuple):
    """One ``--set``.

    Attributes:
        text: as it was given.
        key: what to change.
        pattern: of names, with ``*`` and ``?``; empty where the key takes none.
        multiplies: ``*=``.
        value: text behind the sign.
    """

    text: str
    key: str
    pattern: str
    multiplies: bool
    value: str

    @property
    def removes(self) -> bool:
        """Return whether it asks for removal."""
        return self.value == REMOVE

    def factor(self) -> float:
        """Return the factor of ``*=``.

        Raises:
            ConfigError: it is no ``*=``, or no number from 0 on.
        """
        if not self.multiplies:
            target = f"{self.key}:{self.pattern}" if self.pattern else self.key
            remedy = f"{target}*=0.5" + (f" or {target}={REMOVE}" if self.pattern else "")
            raise ConfigError(f"--set {self.text}: its time is changed by a factor; write {remedy}")
        return self._positive(or_zero=True)

    def number(self) -> float:
        """Return the number behind ``=``.

        Raises:
            ConfigError: it is ``*=``, or no positive number.
        """
        if self.multiplies:
            raise ConfigError(f"--set {self.text}: {self.key} is set, not scaled; write {self.key}=NUMBER")
        return self._positive()

    def _positive(self, or_zero: bool = False) -> float:
        try:
            value = float(self.value)
        except ValueError:
            value = -1.0
        if not (0.0 < value < LARGEST_FACTOR or (or_zero and value == 0.0)):
            least = "0" if or_zero else "more than 0"
            raise ConfigError(f"--set {self.text}: {self.value!r} is no number from {least} to {LARGEST_FACTOR:,.0f}")
        return value

    def whole(self, least: int = 1) -> int:
        """Return the whole number behind ``=``.

        Raises:
            ConfigError: it is none, or below ``least``.
        """
        value = self.number()
        if value != int(value) or value < least:
            raise ConfigError(f"--set {self.text}: {self.value} is no whole number from {least} on")
        return int(value)


class Touched(NamedTuple):
    """What a change touched.

    Attributes:
        what: counted, in words.
        before_us: their time together.
        after_us: likewise.
        notes: what the new times rest on, one sentence each.
    """

    what: str
    before_us: float
    after_us: float
    notes: tuple[str, ...] = ()


class Changed(NamedTuple):
    """A changed step, and what the change touched."""

    step: TracedStep
    touched: Touched


def parse_setting(text: str) -> Setting:
    """Return what a ``--set`` asks for; that its key is known is checked where changes are listed.

    ``operator:aten::*=remove`` has the pattern ``aten::*``, as only a number can stand behind ``*=``. KEY=x0.5 is the
    same as KEY*=0.5, also behind a pattern that ends in ``*``.

    Raises:
        ConfigError: it has no such form.
    """
    form = FORM.fullmatch(text.strip())
    if form is None:
        raise ConfigError(f"--set {text}: expected KEY=VALUE or KEY*=FACTOR, with KEY:PATTERN for operators")
    pattern, multiplies, value = form["pattern"] or "", form["sign"] == "*=", form["value"].strip()
    if multiplies and pattern and not _is_number(value):
        pattern, multiplies = f"{pattern}*", False
    if value[:1] in ("x", "×"):
        multiplies, value = True, value[1:]
    return Setting(text, form["key"], pattern, multiplies, value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
