"""The clauses of a HugeCTR configuration other than its dense layers.

Source of names, defaults and rules: HugeCTR, "Configuration File Setup", and its sample files.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

SCALERS = (128, 256, 512, 1024)
# A slipped key adds digits. Each limit is some ten times beyond the largest run in print: thousands of GPUs, a thousand
# slots, 10¹⁰ rows in a table.
LARGEST_GPUS = 65_536
LARGEST_BATCH = 1_000_000_000
LARGEST_SLOTS = 100_000
LARGEST_KEYS = 10_000_000
LARGEST_ROWS = 10**12
LARGEST_WIDTH = 1_000_000


def _up_to(largest: int) -> AfterValidator:
    """Refuse what is taken for a slip."""

    def check(value: int) -> int:
        if value > largest:
            raise ValueError(f"{value} is more than {largest:,}, which is taken for a slip")
        return value

    return AfterValidator(check)


Gpus = Annotated[int, Field(gt=0), _up_to(LARGEST_GPUS)]
Batch = Annotated[int, Field(gt=0), _up_to(LARGEST_BATCH)]
Slots = Annotated[int, Field(gt=0), _up_to(LARGEST_SLOTS)]
Keys = Annotated[int, Field(gt=0), _up_to(LARGEST_KEYS)]
Rows = Annotated[int, Field(gt=0), _up_to(LARGEST_ROWS)]
Width = Annotated[int, Field(gt=0), _up_to(LARGEST_WIDTH)]


class Clause(BaseModel):
    """Base of every clause: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


class Solver(Clause):
    """Resources and tasks of training; the Python interface takes them from ``solver_parser_helper`` instead."""

    lr_policy: Literal["fixed"] = "fixed"
    display: int = Field(default=200, gt=0, description="iterations between two lines of loss")
    max_iter: int | None = Field(default=None, gt=0, description="training iterations")
    num_epochs: int | None = Field(default=None, gt=0, description="passes over the data, instead of max_iter")
    gpu: tuple[tuple[int, ...], ...] = Field(default=((0,),), description="GPUs per node")
    batchsize: Batch = Field(default=2048, description="samples of a training step, all GPUs together")
    batchsize_eval: Batch | None = Field(default=None, description="samples of an evaluation step")
    snapshot: int = Field(default=10_000_000, gt=0, description="iterations between checkpoints")
    snapshot_prefix: str = "./"
    eval_interval: int = Field(default=1000, gt=0, description="iterations between evaluations")
    max_eval_batches: int | None = Field(default=None, gt=0)
    eval_batches: int | None = Field(default=None, gt=0, description="its older name, which training refuses")
    max_eval_samples: int | None = Field(default=None, gt=0)
    dense_model_file: str = Field(default="", alias="dense model_file")
    sparse_model_file: tuple[str, ...] = ()
    dense_opt_states_file: str = ""
    sparse_opt_states_file: tuple[str, ...] = ()
    mixed_precision: int | None = Field(default=None, description="loss scale")
    enable_tf32_compute: bool = False
    eval_metrics: tuple[str, ...] = ("AUC",)
    input_key_type: Literal["I32", "I64"] = "I32"

    @field_validator("gpu", mode="before")
    @classmethod
    def _nodes(cls, value: Any) -> Any:
        is_flat = isinstance(value, list) and all(isinstance(gpu, int) for gpu in value)
        return [value] if is_flat else value

    @field_validator("sparse_model_file", "sparse_opt_states_file", mode="before")
    @classmethod
    def _files(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("mixed_precision")
    @classmethod
    def _scaler(cls, value: int | None) -> int | None:
        if value is not None and value not in SCALERS:
            raise ValueError(f"mixed_precision is {value}; expected one of {', '.join(map(str, SCALERS))}")
        return value

    @model_validator(mode="after")
    def _one_length(self) -> Solver:
        if self.max_iter is not None and self.num_epochs is not None:
            raise ValueError("max_iter and num_epochs are both given; give one")
        if not self.gpu or not all(self.gpu):
            raise ValueError("gpu names no GPU of some node")
        return self


class AdamHyperparameters(Clause):
    """Of Adam."""

    learning_rate: float = Field(default=0.001, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-7, gt=0)


class MomentumHyperparameters(Clause):
    """Of MomentumSGD and Nesterov."""

    learning_rate: float = Field(default=0.001, ge=0)
    momentum_factor: float = Field(default=0.0, ge=0, lt=1)


class SgdHyperparameters(Clause):
    """Of SGD and its learning-rate schedule."""

    learning_rate: float = Field(default=0.001, ge=0)
    atomic_update: bool = False
    warmup_steps: int = Field(default=1, gt=0)
    decay_start: int = Field(default=0, ge=0)
    decay_steps: int = Field(default=1, gt=0)
    decay_power: float = Field(default=2.0, gt=0)
    end_lr: float = Field(default=0.0, ge=0)


class AdaGradHyperparameters(Clause):
    """Of AdaGrad, which later versions of HugeCTR have."""

    learning_rate: float = Field(default=0.001, ge=0)
    initial_accu_value: float = Field(default=0.0, ge=0)
    epsilon: float = Field(default=1e-7, gt=0)


class OptimizerClause(Clause):
    """The optimizer of the dense network, or of one embedding layer."""

    type: Literal["Adam", "MomentumSGD", "Nesterov", "SGD", "AdaGrad"]
    update_type: Literal["Local", "Global", "LazyGlobal"] = "Local"
    global_update: bool | None = Field(default=None, description="older name: true is Global, false is Local")
    learning_rate: bool | float | None = Field(default=None, description="in some files; the hyperparameters decide")
    adam_hparam: AdamHyperparameters | None = None
    momentum_sgd_hparam: MomentumHyperparameters | None = None
    nesterov_hparam: MomentumHyperparameters | None = None
    sgd_hparam: SgdHyperparameters | None = None
    adagrad_hparam: AdaGradHyperparameters | None = None

    @property
    def hyperparameters(self) -> Clause:
        """Return those of its type; defaults where the clause has none."""
        given: dict[str, tuple[Clause | None, type[Clause]]] = {
            "Adam": (self.adam_hparam, AdamHyperparameters),
            "MomentumSGD": (self.momentum_sgd_hparam, MomentumHyperparameters),
            "Nesterov": (self.nesterov_hparam, MomentumHyperparameters),
            "SGD": (self.sgd_hparam, SgdHyperparameters),
            "AdaGrad": (self.adagrad_hparam, AdaGradHyperparameters),
        }
        own, default = given[self.type]
        return default() if own is None else own


class InferenceClause(Clause):
    """What an inference configuration has in place of a solver."""

    max_batchsize: Batch = Field(default=1024, description="samples of the largest request")
    dense_model_file: str
    sparse_model_file: tuple[str, ...]
    hit_rate_threshold: float = Field(
        default=1.0, ge=0, le=1, description="a request below this hit rate puts the rows that it missed into the cache"
    )
    input_key_type: Literal["I32", "I64"] | None = Field(default=None, description="as i64_input_key says, where given")
    mixed_precision: bool = Field(default=False, description="the dense network in fp16")
    algorithm_search: bool = Field(default=True, description="of cuBLAS; the engine here searches by itself")
    cuda_graph: bool = Field(default=True, description="requests have many sizes here, so none is captured")

    @field_validator("sparse_model_file", mode="before")
    @classmethod
    def _files(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class Label(Clause):
    """The label."""

    top: str = "label"
    label_dim: Width = 1


class Dense(Clause):
    """Continuous features."""

    top: str = "dense"
    dense_dim: Annotated[int, Field(ge=0), _up_to(LARGEST_WIDTH)]


class Sparse(Clause):
    """Categorical features of one embedding layer."""

    top: str
    type: Literal["DistributedSlot", "LocalizedSlot"]
    max_feature_num_per_sample: Keys
    max_nnz: Keys | None = None
    slot_num: Slots


class Data(Clause):
    """The data layer."""

    name: str = "data"
    type: Literal["Data"]
    format: Literal["Norm", "Raw", "Parquet"] = "Norm"
    source: str = ""
    eval_source: str = ""
    check: Literal["Sum", "None"] = "None"
    num_samples: int | None = Field(default=None, gt=0)
    eval_num_samples: int | None = Field(default=None, gt=0)
    slot_size_array: tuple[Annotated[int, _up_to(LARGEST_ROWS)], ...] = ()
    float_label_dense: bool = False
    cache_eval_data: int | bool = 0
    num_workers: int = Field(default=12, gt=0)
    label: Label
    dense: Dense
    sparse: tuple[Sparse, ...] = Field(min_length=1)

    @field_validator("sparse", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _sizes(self) -> Data:
        slots = sum(sparse.slot_num for sparse in self.sparse)
        if self.slot_size_array and len(self.slot_size_array) != slots:
            raise ValueError(
                f"slot_size_array has {len(self.slot_size_array)} sizes; the sparse inputs have {slots} slots"
            )
        if any(size < 1 for size in self.slot_size_array):
            raise ValueError("slot_size_array has a size below 1")
        if self.format != "Norm" and not self.slot_size_array:
            raise ValueError(f"slot_size_array is missing; format {self.format} needs it")
        return self


class EmbeddingHyperparameters(Clause):
    """Sizes of an embedding layer."""

    max_vocabulary_size_per_gpu: Rows | None = None
    slot_size_array: tuple[Rows, ...] = ()
    embedding_vec_size: Width
    combiner: Literal[0, 1]


class EmbeddingClause(Clause):
    """An embedding layer."""

    name: str
    type: str
    bottom: str
    top: str
    plan_file: str | tuple[str, ...] = Field(default="", description="routes of gossip; NCCL and gloo find their own")
    sparse_embedding_hparam: EmbeddingHyperparameters
    optimizer: OptimizerClause | None = None


class PredictionClause(Clause):
    """What a prediction needs and HugeCTR's configuration cannot say; HugeCTR itself has no such clause."""

    system: str | None = Field(default=None, description="published system, by name or folder")
    num_gpus: Gpus | None = Field(default=None, description="in place of the solver's gpu")
    gpus_per_node: Gpus | None = None
    batch_size: Batch | None = Field(default=None, description="samples of a step, in place of the solver's batchsize")
    precision: Literal["fp32", "fp16", "bf16"] | None = None
    key_exponent: float = Field(default=0.0, ge=0, description="of the power law of keys; 0: uniform")
    keys_follow: bool = Field(
        default=False, description="a sample's further keys of a slot follow from its first, as in MLPerf's data"
    )
    hotness: dict[str, tuple[float, ...]] = Field(
        default_factory=dict, description="keys per sample and slot, by sparse input; a single one stands for all slots"
    )
    cached_share: float = Field(
        default=1.0, gt=0, le=1, description="of every table's rows in device memory, the others on the host"
    )
    plan: str | dict[str, Any] = Field(
        default="default", description="default: HugeCTR's placement; a plan's file; or the plan itself"
    )
    overlap_input: bool = True
    overlap_embeddings: bool = True
    overlap_gradients: bool = True
    engine: Literal["hugectr", "torchrec", "sok"] | None = Field(
        default=None,
        description="what trains: HugeCTR itself, this project's trainer, as always on a CPU, or TensorFlow with SOK",
    )
    use_cuda_graph: bool = Field(default=True, description="as the argument of solver_parser_helper")
    price_per_gpu_hour: float | None = Field(default=None, ge=0)
