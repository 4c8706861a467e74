"""The cluster of a configuration: a published system with numbers of one's own."""

from __future__ import annotations

from functools import lru_cache

from predictor.core.base.errors import ConfigError
from predictor.core.costs.published import PublishedSystem, with_hardware
from predictor.core.hardware.hardware import Quantity, System
from predictor.core.hardware.power import static_power_w
from predictor.core.schema.host_section import AS_PUBLISHED_HOST, HostSection, on_host
from predictor.core.schema.sections import AS_PUBLISHED, ClusterSection

OF_GPU = ("memory_bandwidth_gb_per_s", "memory_gib", "power_limit_w", "rank_spread")


def _said(key: str, value: float) -> Quantity:
    return Quantity(value=value, source=f"the configuration, cluster.{key}")


def _check(hardware: System, cluster: ClusterSection) -> None:
    """Refuse a power limit that leaves no clock, and NVLink domains that end inside a node."""
    limit, static = cluster.power_limit_w, static_power_w(hardware.gpu)
    if limit is not None and static is not None and limit <= static:
        raise ConfigError(
            f"cluster.power_limit_w is {limit:g}; {hardware.gpu.name} draws about {static:g} W without computing, so "
            "give a limit above that"
        )
    domain, node = cluster.gpus_per_domain, hardware.gpus_per_node
    if domain is not None and domain % node:
        raise ConfigError(
            f"cluster.gpus_per_domain is {domain}; a domain holds whole nodes, so it must be a multiple of "
            f"{hardware.name}'s gpus_per_node, {node}"
        )


def notes_on(hardware: System, cluster: ClusterSection) -> tuple[str, ...]:
    """Return a note where a power limit limits nothing; none where it does, or where there is none."""
    limit, board = cluster.power_limit_w, hardware.gpu.board_power_w
    if limit is None or board is None or limit <= board.value:
        return ()
    return (f"cluster.power_limit_w, {limit:g} W, is above the board's own {board.value:g} W and changes no time.",)


def on_cluster(hardware: System, cluster: ClusterSection) -> System:
    """Return a system's hardware with the numbers of a configuration's cluster.

    Traffic between nodes shares an oversubscribed core wherever ranks are placed: without a placement every ring and
    every message is taken to cross it.

    Raises:
        ConfigError: a number is not possible on this hardware.
    """
    _check(hardware, cluster)
    numbers = {key: value for key in OF_GPU if (value := getattr(cluster, key)) is not None}
    gpu = hardware.gpu.model_copy(update={key: _said(key, value) for key, value in numbers.items()})
    links = hardware.links
    if cluster.intra_node_gb_per_s is not None:
        inside = _said("intra_node_gb_per_s", cluster.intra_node_gb_per_s)
        links = links.model_copy(update={"intra_node_gb_per_s": inside})
    if cluster.inter_node_gb_per_s is not None or cluster.network_oversubscription > 1.0:
        key = "inter_node_gb_per_s" if cluster.network_oversubscription == 1.0 else "network_oversubscription"
        whole = cluster.inter_node_gb_per_s or links.inter_node_gb_per_s.value
        between = _said(key, whole / cluster.network_oversubscription)
        links = links.model_copy(update={"inter_node_gb_per_s": between})
    if cluster.host_gb_per_s is not None:
        links = links.model_copy(update={"host_gb_per_s": _said("host_gb_per_s", cluster.host_gb_per_s)})
    changed: dict[str, object] = {"gpu": gpu, "links": links}
    changed["gpus_per_domain"] = cluster.gpus_per_domain or hardware.gpus_per_domain
    for key in ("host_memory_gb_per_s", "host_memory_gib"):
        if (value := getattr(cluster, key)) is not None:
            changed[key] = _said(key, value)
    return hardware.model_copy(update=changed)


@lru_cache(maxsize=64)
def _clustered(system: PublishedSystem, cluster: ClusterSection, host: HostSection) -> PublishedSystem:
    hardware = on_host(on_cluster(system.hardware, cluster), host, "the configuration")
    return with_hardware(system, hardware)


def clustered(
    system: PublishedSystem, cluster: ClusterSection, host: HostSection = AS_PUBLISHED_HOST
) -> PublishedSystem:
    """Return the system of a configuration's cluster and host; costs that depend on no changed number stay."""
    if cluster == AS_PUBLISHED and host.is_as_published:
        return system
    return _clustered(system, cluster, host.of_system)
