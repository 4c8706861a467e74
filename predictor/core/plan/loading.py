"""Load a configuration file, in either form, as a run on a published system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from predictor.core.base.errors import ConfigError, MissingKeyError, PublishedError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.checks.kernels import check_fp8_attention_on, check_gpu_kernels
from predictor.core.checks.offloading import check_offloading
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.folder import MANIFEST, read_hardware, read_manifest
from predictor.core.costs.fp32 import Fp32System
from predictor.core.costs.low_precision import transposes_fp8
from predictor.core.costs.published import OPERATOR_FOLDER, PublishedSystem, measured_precisions, open_system
from predictor.core.costs.slowest import slowest_of
from predictor.core.costs.sustained import in_training
from predictor.core.costs.variants import below_calibration
from predictor.core.costs.work import STEP_PRECISIONS
from predictor.core.hardware.hardware import System
from predictor.core.plan import short_config
from predictor.core.plan.cluster import clustered, notes_on
from predictor.core.plan.other_tools import other_format
from predictor.core.plan.to_run import to_run
from predictor.core.schema.finding import find_system, published, published_with_gpus, short_form_system, usual_notes
from predictor.core.schema.foreign import readers
from predictor.core.schema.inherited_keys import GUESSES, refuse_guesses, with_files
from predictor.core.schema.input_kind import EXPERIMENT, HUGECTR, TRAINERS, is_experiment, is_of_trainer
from predictor.core.schema.own_system import OwnSystem, own_system
from predictor.core.schema.sections import BudgetSection, RunConfig, validate
from predictor.core.schema.short_names import OPERATORS_BY_SHORT_NAME
from predictor.core.schema.software import Taken, with_software
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.software import Framework

# Files of other tools, which a configuration takes in by ``from``.
OTHER_TOOLS = (".json", ".toml", ".sh", ".slurm", ".py")
OVERLAPS = ("overlap_gradient_reduction", "overlap_parameter_gather", "overlap_tensor_parallel")
PRECISIONS = ("bf16", "fp16", "fp32")  # of a run that says none, the first in which its system answers
# Precisions with the same element size and matrix peak, in which kernels run at the same rate.
SAME_RATE = {"bf16": "fp16"}


def _measured_in(precisions: list[str]) -> str:
    """Return the precisions of a system's measurements, for a message."""
    steps = [precision for precision in precisions if precision in STEP_PRECISIONS]
    single = [precision for precision in precisions if precision not in STEP_PRECISIONS]
    said = " and ".join(steps) or "none"
    return f"{said}, and single operators in {' and '.join(single)}" if single else said


def _no_system(folder: Path) -> ConfigError:
    return ConfigError(f"{folder} is not a published system: it has no {MANIFEST}. Published: {published()}")


@lru_cache(maxsize=32)
def open_measured(folder: Path, precision: str) -> PublishedSystem:
    """Open a published system in a measured precision, or in one that runs at the same rate.

    Raises:
        ConfigError: the folder is not a published system, or the precision was not measured.
        PublishedError: a file of it is damaged.
    """
    if not (folder / MANIFEST).is_file():
        raise _no_system(folder)
    measured = measured_precisions(folder)
    used = precision if precision in measured else SAME_RATE.get(precision, precision)
    if used in measured:
        system = open_system(folder, used)
        peaks = system.hardware.gpu.peak_tflop_per_s
        if used == precision or (precision in peaks and peaks[precision].value == peaks[used].value):
            return system
    other = next((known for known in PRECISIONS if known in measured), None)
    way_out = "" if other is None else f": --precision {other}, or training.precision: {other}"
    raise ConfigError(f"precision is {precision}; {folder.name} was measured in {_measured_in(measured)}{way_out}")


@lru_cache(maxsize=32)
def _open_fp32(folder: Path, precision: str, tf32: bool) -> Fp32System:
    return Fp32System(folder, precision, tf32)


def open_for(folder: Path, precision: str, tf32: bool) -> PublishedSystem:
    """Open a published system in a precision; fp32 is answered from 16 bits where it was not measured.

    Raises:
        ConfigError: the folder is no published system, or was not measured in any precision that answers.
        PublishedError: it is damaged, or its GPU's fp32 peak is not known.
    """
    if precision == "fp32" and (folder / MANIFEST).is_file():
        measured = measured_precisions(folder)
        for known in ("fp16", "bf16"):
            if "fp32" not in measured and known in measured:
                return _open_fp32(folder, known, tf32)
    return open_measured(folder, precision)


def require(system: PublishedSystem, operator: str) -> None:
    """Check that a system has a regressor for an operator, or that the operator has a donor operator.

    Raises:
        PublishedError: neither; the message lists the regressors.
    """
    known = catalogue()[operator]
    if known.stand_in is not None:
        return
    measured = system.regressor_names(OPERATOR_FOLDER)
    if known.regressor_name not in measured:
        short = " or ".join(name for name, inside in OPERATORS_BY_SHORT_NAME.items() if inside == operator)
        named = f"{operator} ({short})" if short else operator
        raise PublishedError(
            f"{system.name} has no {system.precision} regressor for {named}; it has {', '.join(measured)}"
        )


def check_gpu(key: str, gpu: object, system: PublishedSystem) -> None:
    """Check that a system has the named GPU.

    Raises:
        ConfigError: it has another; the message lists the published systems with their GPUs.
    """
    if gpu != system.gpu:
        raise ConfigError(
            f"{key} is {gpu}; {system.name} was measured on {system.gpu}. Published: {published_with_gpus()}"
        )


class Content(NamedTuple):
    """A checked configuration file.

    Attributes:
        folder: of its system.
        own: the system's own numbers, where it is a file that says what it is like; ``folder`` is then of that.
        listed: operators of a short form's function_list.
        notes: on its ``from`` files.
        taken: defaults of its framework.
    """

    config: RunConfig
    folder: Path
    own: OwnSystem | None
    listed: tuple[str, ...]
    notes: tuple[str, ...]
    taken: Taken | None = None


class Loaded(NamedTuple):
    """A configuration file, ready to predict.

    Attributes:
        taken: defaults of its framework that it takes; None where it says all.
    """

    run: TrainingRun
    system: PublishedSystem
    budget: BudgetSection
    notes: tuple[str, ...]
    taken: Taken | None = None


def of_trainer(content: dict[str, Any], base: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the configuration that a file of our own trainers stands for, and what its reader says.

    They are experiments of model_training_framework and configurations of llm_trainer. Any other is returned as it is.

    Raises:
        ConfigError: it cannot be predicted.
        MissingKeyError: it names no system.
    """
    if not is_of_trainer(content):
        return content, ()
    where = f"experiment {content[EXPERIMENT]}" if is_experiment(content) else "configuration of llm_trainer"
    read = readers().of_trainer(content, where, base)
    if "system" not in read.content and not short_config.is_short(read.content):
        raise MissingKeyError(f"{where}: prediction.system is missing; name a published system: {published()}")
    return _of_own_program(read.content, base), read.notes


def _of_own_program(content: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return a trainer's run as one of a PyTorch program, unless its own keys or its files say another software."""
    training = content.get("training")
    if short_config.is_short(content) or not isinstance(training, dict) or "framework" in training:
        return content
    if "from" in content and not with_files(content, base)[0].get("training", {}).keys() <= training.keys():
        return content  # such a file says all
    return {**content, "training": {**training, "framework": str(Framework.PYTORCH)}}


def in_full(content: dict[str, Any], base: Path) -> tuple[dict[str, Any], Taken | None]:
    """Return a configuration with what its framework does where it says nothing, and which keys those are.

    Its framework is the one that it names; else PyTorch on a system whose processors move the traffic, Megatron-LM on
    any other. Its precision is bf16 where the system answers in it.

    Args:
        content: in its full form, its files and its preset taken in.
        base: folder that its paths are relative to.
    """
    system = content.get("system")
    if not isinstance(system, str) or not system.strip():
        return with_software(content, Framework.MEGATRON_LM, PRECISIONS[0])
    folder = find_system(system, base)[1]
    said = content.get("training")
    tf32 = isinstance(said, dict) and said.get("tf32") is True
    precision = "fp32" if tf32 else _answered_precision(folder)
    manifest = folder / MANIFEST
    hardware = _hardware(folder, manifest.stat().st_mtime_ns) if manifest.is_file() else None
    moves_traffic = hardware is not None and hardware.links.engine == "processor"
    framework = Framework.PYTORCH if moves_traffic else Framework.MEGATRON_LM
    instruction = None if hardware is None else hardware.gpu.matrix_instruction
    return with_software(content, framework, precision, instruction)


@lru_cache(maxsize=32)
def _hardware(folder: Path, sealed_ns: int) -> System:
    """Read the hardware of a published system, anew where its manifest was written again."""
    return read_hardware(folder, read_manifest(folder))


@lru_cache(maxsize=32)
def _answered_precision(folder: Path) -> str:
    """Return the first of the usual precisions in which a system answers; of a folder that is none the first."""
    for precision in PRECISIONS:
        try:
            open_for(folder, precision, tf32=False)
        except (ConfigError, PublishedError):
            continue
        return precision
    return PRECISIONS[0]


def _read(content: dict[str, Any], base: Path) -> Content:
    """Return the checked content of a configuration file in either form, or of one of our own trainers."""
    content, told = of_trainer(content, base)
    if not short_config.is_short(content):
        content, notes, unsaid = with_files(content, base)
        refuse_guesses(unsaid, GUESSES)
        notes = (*notes, *unsaid.values())
        content, taken = in_full(content, base)
        line = None if taken is None else taken.note()
        notes = notes if line is None else (*notes, line)
        config = validate(content)
        if not config.system.strip():
            raise ConfigError(f"system is {config.system!r}; expected a published system: {published()}")
        own, folder = find_system(config.system, base)
        return Content(config, folder, own, (), (*told, *notes, *usual_notes(config.system)), taken)
    config = validate(short_config.expand(content), is_short=True)
    return Content(config, short_form_system(content, base), None, short_config.listed_operators(content), told)


def read_config(path: str | Path) -> tuple[dict[str, Any], Path]:
    """Return the content of a configuration file, and the folder that its paths are relative to.

    Raises:
        ConfigError: not a path, or not a mapping.
    """
    if not isinstance(path, str | PathLike):
        raise ConfigError(f"config_path is {path!r}; expected the path of a configuration file")
    path = Path(path)
    if path.suffix in OTHER_TOOLS and path.is_file():
        tool = readers().detect(path)
        if tool in TRAINERS:
            return read_mapping(path), path.resolve().parent
        if tool == HUGECTR:
            raise ConfigError(
                f"{path} is a {tool}, of a recommender; predict FILE --system NAME or predict_recommender takes it"
            )
        raise _not_our_own(path, tool)
    content = read_mapping(path)
    if (other := other_format(path, content)) is not None:
        raise _not_our_own(path, other)
    return content, path.resolve().parent if path.is_file() else Path.cwd()


def _not_our_own(path: Path, tool: str) -> ConfigError:
    return ConfigError(
        f"{path} is of another tool ({tool}): predict --model {path.name} --system NAME, or take from it in a "
        f"configuration, with from: {path.name} beside its own system and whatever the file does not say"
    )


def gpus_per_node_of(name: str, base: Path) -> int:
    """Return the GPUs per node of a system, given its folder or, as in the short form, its operator folder."""
    own, folder = find_system(name, base)
    if own is not None and own.gpus_per_node is not None:
        return own.gpus_per_node
    home = next((place for place in (folder, folder.parent) if (place / MANIFEST).is_file()), None)
    if home is None:
        raise _no_system(folder)
    return read_hardware(home, read_manifest(home)).gpus_per_node


def on_nodes_of(content: dict[str, Any], system: str | None = None, base: Path | None = None) -> dict[str, Any]:
    """Return a configuration in its full form on whole nodes, or on another system's nodes.

    Args:
        content: of the configuration.
        system: another system; a run on whole nodes stays on whole nodes, another keeps its GPUs per node where a node
            has as many.
        base: folder that paths are relative to.
    """
    content, _ = of_trainer(content, base or Path.cwd())
    full = short_config.expand(content) if short_config.is_short(content) else content
    layout = dict(full.get("parallelism") or {})
    used = layout.pop("gpus_per_node", None)
    if system is None:
        return {**full, "parallelism": layout}
    if full.get("system") is None:
        return {**full, "system": system}  # it says where it runs for the first time
    here, there = (gpus_per_node_of(str(name), base or Path.cwd()) for name in (full.get("system"), system))
    if isinstance(used, int) and used != here and used <= there:
        layout["gpus_per_node"] = used
    return {**full, "parallelism": layout, "system": system, "gpu": None}


def _with_exposed_traffic(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Return a configuration for a system whose processors move the traffic: it hides behind nothing."""
    layout = config.parallelism
    hidden = [name for name in OVERLAPS if getattr(layout, name)]
    if not hidden:
        return config, ()
    exposed = layout.model_copy(update=dict.fromkeys(hidden, False))
    note = f"Nothing hides traffic here, whatever {', '.join(hidden)} says: the processors that compute move it."
    return config.model_copy(update={"parallelism": exposed}), (note,)


def prepare(
    content: dict[str, Any], base: Path, changed: Callable[[PublishedSystem], PublishedSystem] | None = None
) -> Loaded:
    """Turn the content of a configuration in either form into a run on an open system.

    Args:
        content: of the configuration.
        base: folder that paths in it are relative to.
        changed: returns the system of the run from the system that the configuration names.

    Raises:
        MissingKeyError: a required key is absent; a KeyError.
        ConfigError: a key is unknown, or a value is not allowed or not published; a ValueError.
        PublishedError: the published system is damaged or lacks an operator; a ValueError.
    """
    config, folder, own, listed, notes, taken = _read(content, base)
    system = open_for(folder, config.training.precision, config.training.tf32)
    if own is not None:
        system = own_system(system, own)
    system = clustered(system, config.cluster, config.host)
    if changed is not None:
        system = changed(system)
    system = below_calibration(system, in_training)
    if config.gpu is not None:
        check_gpu("gpu_name" if short_config.is_short(content) else "gpu", config.gpu, system)
    check_gpu_kernels(config.training, system)
    check_fp8_attention_on(config.training, config.model, system)
    check_offloading(config.training, system)
    hardware = system.hardware
    notes += notes_on(hardware, config.cluster)
    if hardware.links.engine == "processor":
        config, told = _with_exposed_traffic(config)
        notes += told
    has_switch = hardware.links.wiring == "switch"
    named = config.model_copy(update={"system": system.name})
    run = to_run(named, hardware.gpus_per_node, has_switch, hardware.gpus_per_domain)
    run = replace(run, transposes_fp8=transposes_fp8(hardware.gpu))
    for name in (*listed, *(run.model.layer_operators or ())):
        require(system, name)
    return Loaded(run, slowest_of(system, run.layout.num_gpus), config.budget, notes, taken)


def load(path: str | Path) -> tuple[TrainingRun, PublishedSystem]:
    """Read a configuration file in the full or the short form, and open the system that it names.

    Folders in it are relative to the file (to the current folder where it is a pipe), then to the bundled data.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        KeyError, ValueError: as ``prepare``.
    """
    loaded = prepare(*read_config(path))
    return loaded.run, loaded.system
