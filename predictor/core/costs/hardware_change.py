"""Change one number of a system's hardware: a faster network, more memory, another peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.costs.published import PublishedSystem, with_hardware
from predictor.core.hardware.hardware import Quantity, System, check_range
from predictor.core.hardware.host_memory import host_memory_gb_per_s
from predictor.core.hardware.network import network_share
from predictor.core.hardware.power import static_power_w

MAX_GPUS_PER_NODE = 1024
NETWORK = "network"  # the number between nodes, as people write it


def _changed(value: float) -> Quantity:
    return Quantity(value=value, source="asked for")


def _number(section: str, field: str) -> Callable[[System, float], System]:
    """Return the function that changes one number of a section, gpu or links."""

    def change(system: System, value: float) -> System:
        changed = getattr(system, section).model_copy(update={field: _changed(value)})
        return system.model_copy(update={section: changed})

    return change


def _peak_16_bit(system: System) -> float:
    peaks = system.gpu.peak_tflop_per_s
    return (peaks.get("bf16") or peaks.get("fp16") or next(iter(peaks.values()))).value


def _peak(system: System, value: float) -> System:
    """Change the 16-bit peak, and every other precision's by the same factor."""
    factor = value / _peak_16_bit(system)
    changed = {name: _changed(peak.value * factor) for name, peak in system.gpu.peak_tflop_per_s.items()}
    return system.model_copy(update={"gpu": system.gpu.model_copy(update={"peak_tflop_per_s": changed})})


def _node(system: System, value: float) -> System:
    if value != int(value) or not 1 <= value <= MAX_GPUS_PER_NODE:
        raise ConfigError(f"gpus_per_node is {value:g}; expected a whole number from 1 to {MAX_GPUS_PER_NODE}")
    return system.model_copy(update={"gpus_per_node": int(value)})


def _power_limit(system: System, value: float) -> System:
    """Limit the power of every GPU, between what it draws without computing and its board's own limit."""
    static, board = static_power_w(system.gpu), system.gpu.board_power_w
    if static is None or board is None or not static < value <= board.value:
        least, most = (static or 0.0), (board.value if board is not None else 0.0)
        raise ConfigError(
            f"power_limit_w is {value:g}; expected more than {least:g} W, which {system.gpu.name} draws without "
            f"computing, and at most {most:g} W, the board's own limit"
        )
    return _number("gpu", "power_limit_w")(system, value)


def _host_memory(system: System, value: float) -> System:
    return system.model_copy(update={"host_memory_gb_per_s": _changed(value)})


CHANGES: dict[str, Callable[[System, float], System]] = {
    "peak_tflop_per_s": _peak,
    "memory_bandwidth_gb_per_s": _number("gpu", "memory_bandwidth_gb_per_s"),
    "memory_gib": _number("gpu", "memory_gib"),
    "board_power_w": _number("gpu", "board_power_w"),
    "power_limit_w": _power_limit,
    "intra_node_gb_per_s": _number("links", "intra_node_gb_per_s"),
    "inter_node_gb_per_s": _number("links", "inter_node_gb_per_s"),
    "host_gb_per_s": _number("links", "host_gb_per_s"),
    "host_memory_gb_per_s": _host_memory,
    "gpus_per_node": _node,
}
KEYS = (*CHANGES, NETWORK)


def current(system: System, key: str) -> float | None:
    """Return the number that a key stands for; None where the system does not say."""
    if key == "gpus_per_node":
        return float(system.gpus_per_node)
    if key == "peak_tflop_per_s":
        return _peak_16_bit(system)
    if key == "host_memory_gb_per_s":
        memory = host_memory_gb_per_s(system)
        return None if memory is None else memory.value
    if key == "power_limit_w" and system.gpu.power_limit_w is None:
        key = "board_power_w"
    holder = system.links if key in type(system.links).model_fields else system.gpu
    quantity: Quantity | None = getattr(holder, key)
    return None if quantity is None else quantity.value


def is_of_hardware(change: str) -> bool:
    """Return whether ``KEY=VALUE`` changes a number of the system, not a key of a configuration."""
    return change.partition("=")[0] in KEYS


def parse_change(text: str, system: System) -> tuple[str, float]:
    """Return key and new value of ``key=value``, or of ``key=×factor`` (also ``x``), which multiplies.

    ``network=200 Gb/s per node`` is the GPU's share of the network, ``inter_node_gb_per_s``.

    Raises:
        ConfigError: no such key, or no positive number.
    """
    key, equals, value = text.partition("=")
    if not equals or key not in KEYS:
        raise ConfigError(f"--set {text}: expected KEY=VALUE.{nearest(key, KEYS)} Keys: {', '.join(KEYS)}")
    if key == NETWORK:
        return "inter_node_gb_per_s", network_share(value, system.gpus_per_node).gb_per_s
    multiplies = value[:1] in ("x", "×", "*")
    try:
        number = float(value[1:] if multiplies else value)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e12:
        raise ConfigError(
            f"--set {text}: {value!r} is no positive number; write {key}=50, or {key}=x2 for twice as much"
        )
    if multiplies:
        before = current(system, key)
        if before is None:
            raise ConfigError(f"--set {text}: {system.name} does not say its {key}; give a number instead of a factor")
        number *= before
    try:
        check_range(key, number)
    except ConfigError as error:
        raise ConfigError(f"--set {text}: {key} is {number:g}; {error}") from None
    return key, number


def network_notes(changes: Iterable[str], system: System) -> tuple[str, ...]:
    """Return what a network that changes give as people write it means per GPU."""
    given = [value for key, _, value in (text.partition("=") for text in changes) if key == NETWORK]
    return tuple(network_share(value, system.gpus_per_node).sentence for value in given)


def changed(system: PublishedSystem, changes: dict[str, float]) -> PublishedSystem:
    """Return a system with changed numbers of its hardware.

    Raises:
        ConfigError: a number is out of range.
    """
    hardware = system.hardware
    for key, value in changes.items():
        hardware = CHANGES[key](hardware, value)
    return with_hardware(system, hardware)
