"""A system's hardware as data, ``system.yaml``: the unit in every key, a source on every number."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.errors import ConfigError

# From a CPU's core and a slow network to some fifty times the largest GPU in print; every formula stays finite.
RANGES = {
    "peak_tflop_per_s": (1e-3, 1e6),
    "num_multiprocessors": (1.0, 1e5),
    "memory_bandwidth_gb_per_s": (1e-1, 1e6),
    "l2_cache_mb": (1e-3, 1e6),
    "memory_gib": (1e-3, 1e5),
    "board_power_w": (1e-1, 1e5),
    "power_limit_w": (1e-1, 1e5),
    "rank_spread": (1e-6, 1.0),
    "intra_node_gb_per_s": (1e-3, 1e6),
    "inter_node_gb_per_s": (1e-3, 1e6),
    "host_gb_per_s": (1e-3, 1e6),
    "host_memory_gb_per_s": (1e-3, 1e6),
    "host_memory_gib": (1e-3, 1e6),
    "launch_forward_us": (1e-1, 1e4),
    "launch_backward_us": (1e-1, 1e4),
}


def check_range(key: str, value: float) -> None:
    """Check that a number of the hardware is one that a machine may have; keys without a range have none.

    Raises:
        ConfigError: it is not; a ValueError.
    """
    smallest, largest = RANGES.get(key, (value, value))
    if not smallest <= value <= largest:
        raise ConfigError(f"expected {smallest:,g} to {largest:,.0f}, anything else is taken for a slip")


class HardwareModel(BaseModel):
    """Base of every part of ``system.yaml``: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(HardwareModel):
    """A number and where it was read."""

    value: float = Field(gt=0, allow_inf_nan=False)
    source: str = Field(min_length=1)


class Gpu(HardwareModel):
    """Peaks of one GPU."""

    name: str = Field(description="torch.cuda.get_device_name(0) without spaces")
    same_chip_as: str | None = Field(
        default=None, description="GPU of the same chip, which differs in memory, power or links alone"
    )
    num_multiprocessors: Quantity
    peak_tflop_per_s: dict[str, Quantity] = Field(description="dense matrix peak by precision")
    memory_bandwidth_gb_per_s: Quantity
    l2_cache_mb: Quantity
    memory_gib: Quantity | None = Field(default=None, description="device memory; absent on a CPU")
    board_power_w: Quantity | None = Field(default=None, description="thermal design power of one GPU")
    rank_spread: Quantity | None = Field(
        default=None, description="standard deviation of the time of computing over GPUs of this model, as a share"
    )
    power_limit_w: Quantity | None = Field(
        default=None, description="power limit below the board's; absent: the board's"
    )
    matrix_instruction: Literal["mma", "wgmma", "tcgen05"] | None = Field(
        default=None, description="of the matrix units, as the PTX ISA names it: decides which attention kernels run"
    )
    sustained_product_ratio: Quantity | None = Field(
        default=None, description="rate of a large matrix product after seconds without a pause over its rate in bursts"
    )

    @property
    def chip(self) -> str:
        """Return the name of the GPU that stands for all of the same chip."""
        return self.same_chip_as or self.name

    def holds(self, size_bytes: float) -> bool | None:
        """Return whether so many bytes fit into the device memory; None where that is not known."""
        return None if self.memory_gib is None else size_bytes <= self.memory_gib.value * 2**30


class Links(HardwareModel):
    """What connects GPUs, per GPU and direction."""

    intra_node_gb_per_s: Quantity = Field(description="all links of one GPU to the others of its node together")
    inter_node_gb_per_s: Quantity
    host_gb_per_s: Quantity | None = Field(
        default=None, description="between host memory and one GPU; absent on a CPU, and where it is not known"
    )
    wiring: Literal["pairwise", "switch"] = Field(
        default="pairwise",
        description="inside a node: every pair of GPUs has an even share of a GPU's links, or a switch gives any peer "
        "all of them",
    )
    engine: Literal["dedicated", "processor"] = Field(
        default="dedicated",
        description="what moves bytes: copy engines, kernels and network cards beside the computing ones, or the "
        "processor that computes, as with ranks on a CPU, so that traffic hides behind nothing",
    )


class Transfer(HardwareModel):
    """Donors of regressors that were not measured on this system: their fitted efficiency, never their speed."""

    operators: str = Field(description="donor of the operators")
    intra_node: str = Field(description="donor of link efficiency inside a node")
    inter_node: str = Field(description="donor of network efficiency between nodes")


Component = Literal["compute", "attention", "memory_bound", "links_in_node", "links_between_nodes", "host", "overlap"]
COMPONENTS: tuple[Component, ...] = get_args(Component)


class Factor(HardwareModel):
    """How much longer one component of a step takes on one's own cluster than its published times say.

    Attributes:
        factor: measured over published time.
        log_error: half width of the factor's 90 % interval, as a log.
    """

    factor: float = Field(gt=0)
    log_error: float = Field(ge=0)


class Calibration(HardwareModel):
    """What measured steps of one's own say about a published system; ``python -m predictor calibrate`` writes it.

    Attributes:
        base: published system whose regressors answer: its name, or its folder from the one that holds this system's.
        covariance: of the logs of all factors, in the order of ``COMPONENTS``. Steps tell what factors do together
            better than they tell each by itself.
        residual: standard deviation of log(measured / predicted) of a run that took no part.
        runs: that took part.
    """

    base: str = Field(min_length=1)
    factors: dict[Component, Factor]
    covariance: tuple[tuple[float, ...], ...] = Field(min_length=len(COMPONENTS), max_length=len(COMPONENTS))
    residual: float = Field(gt=0)
    runs: int = Field(gt=0)


class System(HardwareModel):
    """One cluster: its GPU, its nodes and its links."""

    name: str
    gpus_per_node: int = Field(gt=0, description="GPUs of one node, as Slurm counts them")
    gpu: Gpu
    links: Links
    host: dict[str, Quantity] = Field(description="host launch overhead of a kernel, in microseconds")
    processor: str | None = Field(
        default=None,
        description="of the host, see host_processors.yaml; measured: ``host`` holds its own launches; absent: that of "
        "the published system's data sheet",
    )
    transfer: Transfer | None = Field(default=None, description="donors of regressors that were not measured here")
    like: str | None = Field(
        default=None,
        description="published system of a related GPU whose regressors answer, scaled by the ratio of the numbers",
    )
    gradients: Literal["constant"] | None = Field(
        default=None,
        description="what the measured backward passes were fed, where it is not as in training: constant gradients "
        "draw less power, so that a linear layer's backward pass takes between that and its products' forward time",
    )
    gpus_per_domain: int | None = Field(
        default=None, gt=0, description="GPUs of one NVLink domain where it spans nodes; gpus_per_node if absent"
    )
    attention_kernel: str | None = Field(
        default=None, description="implementation that fused attention was measured with; see attention_kernels.yaml"
    )
    host_memory_gb_per_s: Quantity | None = Field(
        default=None, description="of one node's CPUs together; absent: see host_memory.yaml"
    )
    host_memory_gib: Quantity | None = Field(default=None, description="of one node; absent: see host_capacity.yaml")
    reference_us: dict[int, Quantity] | None = Field(
        default=None, description="reference kernel while operators and collectives were measured, by processes at once"
    )
    calibration: Calibration | None = Field(
        default=None, description="factors that measured steps of one's own moved; see python -m predictor calibrate"
    )

    @property
    def reach(self) -> int:
        """Return the GPUs that reach each other without the network: of an NVLink domain, else of a node."""
        return self.gpus_per_domain or self.gpus_per_node

    @property
    def pair_gb_per_s(self) -> float:
        """Return the bandwidth between two GPUs of a node that send to no other."""
        peers = 1 if self.links.wiring == "switch" else max(self.gpus_per_node - 1, 1)
        return self.links.intra_node_gb_per_s.value / peers
