"""Tables of measured costs, with provenance."""

from __future__ import annotations

import socket
from typing import Any

from microbench.device import Device, commit, library_versions
from microbench.provenance import now
from predictor.replay.precision.measured_costs import MeasuredCosts


def table_of(device: Device, **rows: Any) -> MeasuredCosts:
    """Return a table of ``operators`` or ``casts`` that were measured on a device just now."""
    return MeasuredCosts(
        device=device.name,
        device_kind=device.kind,
        threads=device.multiprocessors if device.kind == "cpu" else 1,
        torch=library_versions(device.kind)["torch"],
        host=socket.gethostname(),
        commit=commit(),
        finished=now(),
        **rows,
    )
