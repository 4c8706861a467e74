"""An experiment's configuration: the specification's keys load, and slips are one line."""

from __future__ import annotations
