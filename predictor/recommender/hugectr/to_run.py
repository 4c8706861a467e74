"""A HugeCTR configuration as a run on a published system; unspecified settings are assumed, and said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.core.costs.fp32 import Fp32System
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.variants import in_graphs
from predictor.core.costs.work import STEP_PRECISIONS
from predictor.core.plan.loading import open_for
from predictor.core.schema.finding import find_folder, published
from predictor.recommender.hugectr.plan_file import parse_plan, read_plan
from predictor.recommender.hugectr.reading import HugeCtrConfig
from predictor.recommender.workload.cache_tasks import hit_rate
from predictor.recommender.workload.embedding import EmbeddingKind, EmbeddingLayer
from predictor.recommender.workload.keys import KeyDistribution
from predictor.recommender.workload.model import Recommender
from predictor.recommender.workload.plan import Sharding, ShardingPlan, default_plan
from predictor.recommender.workload.run import Engine, RecommenderRun


def solver_gpus(config: HugeCtrConfig) -> int | None:
    """Return the number of GPUs that the solver lists; None without a solver."""
    return None if config.solver is None else sum(len(node) for node in config.solver.gpu)


def _is_by_gpu(layer: EmbeddingLayer) -> bool:
    """Return whether the room on each GPU, and not the slots' sizes, says how many rows there are."""
    return layer.rows_per_gpu > 0 and (layer.kind is EmbeddingKind.DISTRIBUTED or not layer.slot_rows)


def _on(layer: EmbeddingLayer, before: int, num_gpus: int) -> EmbeddingLayer:
    """Return a layer with the rows of ``before`` GPUs on so many; a localized layer uses at most one GPU a slot."""
    if not _is_by_gpu(layer):
        return layer
    if layer.kind is not EmbeddingKind.DISTRIBUTED:
        before, num_gpus = min(before, layer.num_slots), min(num_gpus, layer.num_slots)
    return replace(layer, rows_per_gpu=-(-layer.rows_per_gpu * before // num_gpus))


def model_on(config: HugeCtrConfig, num_gpus: int) -> Recommender:
    """Return the model on so many GPUs, with the vocabulary that it has on the solver's; as it is without a solver."""
    before = solver_gpus(config)
    if before is None or before == num_gpus:
        return config.model
    return replace(config.model, embeddings=tuple(_on(layer, before, num_gpus) for layer in config.model.embeddings))


def vocabulary_assumptions(config: HugeCtrConfig, num_gpus: int) -> list[str]:
    """Return what is assumed of rows that the file counts by GPU, a sentence for all layers of one sort."""
    layers = [layer.name for layer in config.model.embeddings if _is_by_gpu(layer)]
    before = solver_gpus(config)
    if not layers or before == num_gpus:
        return []
    names = ", ".join(layers)
    if before is None:
        return [f"max_vocabulary_size_per_gpu of {names} is as in the file on every GPU; no solver says of how many."]
    return [f"{names}: as many rows as on the solver's {before} GPUs, {before}/{num_gpus} of the file's on every GPU."]


HUGECTR_PLAN = "default"
KEY_BYTES = {"I32": 4, "I64": 8}
OVERLAPS = ("overlap_input", "overlap_embeddings", "overlap_gradients")


@dataclass(frozen=True, slots=True)
class Options:
    """What a question sets beside its configuration, in place of the clause ``prediction`` and of the solver.

    Attributes:
        system: published system, by name or folder.
        gpus: of the run.
        batch_size: samples of a step, all GPUs together.
        plan: "default", HugeCTR's own placement, or a plan's file.
        key_exponent: of the power law of keys; 0 is uniform.
        precision: fp32, fp16 or bf16.
        cached_share: of every table's rows that device memory holds.
    """

    system: str | None = None
    gpus: int | None = None
    batch_size: int | None = None
    plan: str | None = None
    key_exponent: float | None = None
    precision: str | None = None
    cached_share: float | None = None


NO_OPTIONS = Options()


class LoadedRecommender(NamedTuple):
    """A configuration, ready to predict.

    Attributes:
        assumptions: what the prediction takes for granted, a sentence each.
        price_per_gpu_hour: as the configuration gives it.
    """

    run: RecommenderRun
    system: PublishedSystem
    assumptions: tuple[str, ...]
    price_per_gpu_hour: float | None


@lru_cache(maxsize=32)
def _graphs(system: PublishedSystem) -> PublishedSystem:
    return in_graphs(system)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} is {value}; expected a number above 0")
    return value


def _num_gpus(config: HugeCtrConfig, options: Options) -> int:
    if options.gpus is not None:
        return _positive("gpus", options.gpus)
    if config.prediction.num_gpus is not None:
        return config.prediction.num_gpus
    listed = solver_gpus(config)
    if listed is None:
        raise MissingKeyError(
            "the number of GPUs is missing: the file has no solver; set prediction.num_gpus or --gpus"
        )
    return listed


def _batch_size(config: HugeCtrConfig, options: Options, num_gpus: int) -> int:
    batch_size = options.batch_size if options.batch_size is not None else config.prediction.batch_size
    if batch_size is None:
        if config.solver is None:
            raise MissingKeyError(
                "the batch size is missing: the file has no solver; set prediction.batch_size or --batch-size"
            )
        batch_size = config.solver.batchsize
    _positive("batch_size", batch_size)
    if batch_size % num_gpus:
        lower = batch_size // num_gpus * num_gpus
        tries = f"{lower} or {lower + num_gpus}" if lower else f"{num_gpus}"
        raise ConfigError(f"batch_size is {batch_size}; it must be a multiple of the {num_gpus} GPUs. Try {tries}")
    return batch_size


def _gpus_per_node(config: HugeCtrConfig, options: Options, num_gpus: int, system: PublishedSystem) -> int:
    """Return the ranks of a node: as the clause or the solver's nodes say, at most the system's."""
    most = system.hardware.reach
    stated = config.prediction.gpus_per_node
    if stated is not None:
        if stated > most:
            raise ConfigError(f"prediction.gpus_per_node is {stated}; {system.name} has {most}")
        return stated
    solver = config.solver
    moved = options.gpus is not None or config.prediction.num_gpus is not None
    if moved or solver is None or len(solver.gpu) == 1:
        return most
    return min(most, max(len(node) for node in solver.gpu))


def _engine(config: HugeCtrConfig, system: PublishedSystem) -> Engine:
    """Return what trains: as the clause says, else HugeCTR, or on a CPU, where it does not run, our trainer."""
    on_cpu = system.hardware.links.engine == "processor"
    usual = Engine.TORCHREC if on_cpu else Engine.HUGECTR
    engine = Engine(config.prediction.engine or usual)
    if engine is Engine.HUGECTR and on_cpu:
        raise ConfigError(f"prediction.engine is hugectr, which needs GPUs; {system.name} has none. Try torchrec")
    return engine


def _reads_ahead(config: HugeCtrConfig, engine: Engine) -> bool:
    """Return whether the next batch's keys travel during a step: as the clause says; usually not in our trainer."""
    clause = config.prediction
    return clause.overlap_input and (engine is not Engine.TORCHREC or "overlap_input" in clause.model_fields_set)


def precision_of(config: HugeCtrConfig, options: Options = NO_OPTIONS) -> str:
    """Return the precision of a run: as the options, the clause or the solver say, else fp32.

    Raises:
        ConfigError: no step runs in it.
    """
    mixed = config.solver is not None and config.solver.mixed_precision is not None
    precision = options.precision or config.prediction.precision or ("fp16" if mixed else "fp32")
    if precision not in STEP_PRECISIONS:
        raise ConfigError(f"precision is {precision}; expected one of {', '.join(STEP_PRECISIONS)}")
    return precision


def asks_for_tf32(config: HugeCtrConfig) -> bool:
    """Return whether the solver asks for matrix products in TF32."""
    return config.solver is not None and config.solver.enable_tf32_compute


def _cached_share(config: HugeCtrConfig, options: Options, plan: ShardingPlan) -> float:
    """Return the share of the rows that device memory holds: all where every table is data-parallel."""
    share = _share_in_memory(config, options)
    return 1.0 if all(sharded.sharding is Sharding.DATA_PARALLEL for sharded in plan.tables) else share


def _share_in_memory(config: HugeCtrConfig, options: Options) -> float:
    share = options.cached_share if options.cached_share is not None else config.prediction.cached_share
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"cached_share is {share}; expected more than 0, and 1 where all rows are in device memory")
    return share


def _system_folder(config: HugeCtrConfig, options: Options, base: Path) -> Path:
    name = options.system if options.system is not None else config.prediction.system
    if name is None or not name.strip():
        raise MissingKeyError(
            f"system is missing; give --system or prediction.system, a published system: {published()}"
        )
    return find_folder(name, base if options.system is None else Path.cwd())


def plan_of(config: HugeCtrConfig, stated: str | dict[str, Any], num_gpus: int, base: Path) -> ShardingPlan:
    """Return the sharding plan that a name stands for: HugeCTR's own, a file's, or one that is written out.

    Raises:
        ConfigError: it is no plan of this model on so many GPUs.
        FileNotFoundError: there is no such plan.
    """
    embeddings = config.model.embeddings
    if stated == HUGECTR_PLAN:
        return default_plan(embeddings, num_gpus)
    if isinstance(stated, str):
        return read_plan(base / stated, embeddings, num_gpus)
    return parse_plan(stated, "prediction.plan", embeddings, num_gpus)


def to_run(config: HugeCtrConfig, options: Options = NO_OPTIONS, base: Path | None = None) -> LoadedRecommender:
    """Return a configuration as a run on an open system.

    Args:
        config: for training; the solver may be missing where options or the clause ``prediction`` say what it would.
        options: go before the clause ``prediction``, and that before the solver.
        base: folder that paths in the configuration are relative to; those in options are relative to the current one.

    Raises:
        MissingKeyError: the system, the number of GPUs or the batch size is not said.
        ConfigError: a value is not allowed, the batch is no multiple of the GPUs, or the plan is not one of this run.
        FileNotFoundError: there is no such plan.
        PublishedError: the published system is damaged.
    """
    if config.inference is not None or config.model.loss is None:
        raise ConfigError("the configuration is for inference; a training step needs an optimizer and a loss")
    base = base or Path.cwd()
    clause, solver = config.prediction, config.solver
    folder = _system_folder(config, options, base)
    precision, tf32 = precision_of(config, options), asks_for_tf32(config)
    system = open_for(folder, precision, tf32)
    if isinstance(system, Fp32System):
        tf32 = system.tf32
    num_gpus = _num_gpus(config, options)
    model = model_on(config, num_gpus)
    exponent = options.key_exponent if options.key_exponent is not None else clause.key_exponent
    if not 0 <= exponent < float("inf"):
        raise ConfigError(f"key_exponent is {exponent}; expected 0, uniform keys, or the exponent of a power law")
    name = options.plan if options.plan is not None else clause.plan
    plan = plan_of(replace(config, model=model), name, num_gpus, Path() if options.plan is not None else base)
    engine, hides = _engine(config, system), system.hardware.links.engine != "processor"
    graphs = engine is Engine.HUGECTR and clause.use_cuda_graph
    run = RecommenderRun(
        model=model,
        plan=plan,
        batch_size=_batch_size(config, options, num_gpus),
        num_gpus=num_gpus,
        gpus_per_node=_gpus_per_node(config, options, num_gpus, system),
        precision=precision,
        tf32=tf32,
        keys=KeyDistribution(exponent, clause.keys_follow),
        key_bytes=KEY_BYTES[solver.input_key_type if solver is not None else "I32"],
        cached_share=_cached_share(config, options, plan),
        overlap_input=hides and _reads_ahead(config, engine),
        overlap_embeddings=hides and clause.overlap_embeddings,
        overlap_gradients=hides and clause.overlap_gradients,
        engine=engine,
        copies_input=system.hardware.links.engine != "processor",
        cuda_graphs=graphs,
    )
    if graphs:
        system = _graphs(system)
    assumptions = (
        *_cache_assumptions(run, _share_in_memory(config, options)),
        *_assumptions(config, run, system, name),
    )
    return LoadedRecommender(run, system, assumptions, clause.price_per_gpu_hour)


def _cache_assumptions(run: RecommenderRun, asked: float) -> list[str]:
    """Return what a prediction takes for granted where device memory shall hold a share of the rows."""
    if asked == 1.0:
        return []
    if run.cached_share == 1.0:
        return [f"cached_share {asked:.3g} changes nothing: copies of data-parallel tables lie whole in device memory."]
    copied = any(sharded.sharding is Sharding.DATA_PARALLEL for sharded in run.plan.tables)
    said = (
        f"Device memory holds the most frequent {asked:.3g} of every table's rows and answers {hit_rate(run):.1%} of "
        "the lookups; other rows come from the host, and go back after their update."
    )
    return [said, "Data-parallel tables lie whole in device memory, and are not counted there."] if copied else [said]


def _assumptions(config: HugeCtrConfig, run: RecommenderRun, system: PublishedSystem, plan: object) -> tuple[str, ...]:
    """Return what a prediction takes for granted, a sentence each."""
    clause, exponent = config.prediction, run.keys.exponent
    keys = "uniform" if exponent == 0 else f"by a power law of exponent {exponent:g}"
    said = [f"Keys are drawn {keys} from every slot's rows."]
    if run.keys.follow:
        said.append("A sample's further keys of a slot follow from its first.")
    unsaid = [layer.input for layer in run.model.embeddings if layer.input not in clause.hotness]
    if unsaid:
        said.append(f"Every slot of {', '.join(dict.fromkeys(unsaid))} has one key per sample.")
    if plan == HUGECTR_PLAN:
        said.append("Tables lie as HugeCTR places them: distributed ones by rows, localized slots in turn.")
    listed = solver_gpus(config)
    if listed is not None and listed != run.num_gpus:
        said.append(f"The solver lists {listed} GPUs; the run has {run.num_gpus}, the global batch stays.")
    said += vocabulary_assumptions(config, run.num_gpus)
    beside = [name for name in OVERLAPS if getattr(run, name)]
    if system.hardware.links.engine == "processor":
        said.append("Nothing hides traffic here: the processors that compute move it.")
    elif beside:
        said.append(f"Traffic runs beside kernels: {', '.join(beside)}.")
    if isinstance(system, Fp32System):
        if asks_for_tf32(config) and not run.tf32:
            said.append(
                f"{system.gpu} has no TF32, by its data sheet: in spite of enable_tf32_compute products run in fp32."
            )
        peak = "TF32" if run.tf32 else "fp32"
        said.append(
            f"{system.name} was measured in {system.precision}: fp32 runs at the same shares of the peaks, with the "
            f"data sheet's {peak} peak and twice the bytes per element."
        )
    return tuple(said)
