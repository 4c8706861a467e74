"""Settings of a training run: the arguments of HugeCTR's Python interface in place of a solver clause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hugectr.exceptions import HugeCtrError
from hugectr.metric_names import parse_metrics
from predictor.recommender.hugectr.sections import SCALERS

MOST = (1 << 31) - 1  # HugeCTR's numbers are int; its seed, unsigned long long, is held to the same here


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverParser:
    """Settings; ``solver_parser_helper`` makes and checks them. Attributes are its arguments.

    Sequences are tuples here, so that nothing changes after the check.
    """

    seed: int
    max_eval_batches: int
    batchsize_eval: int
    batchsize: int
    model_file: str
    dense_opt_states_file: str
    embedding_files: tuple[str, ...]
    sparse_opt_states_file: tuple[str, ...]
    vvgpu: tuple[tuple[int, ...], ...]
    use_mixed_precision: bool
    enable_tf32_compute: bool
    scaler: float
    i64_input_key: bool
    use_algorithm_search: bool
    use_cuda_graph: bool
    repeat_dataset: bool
    sharding_plan: str
    eval_metrics: tuple[str, ...]

    @property
    def num_ranks(self) -> int:
        """Return the ranks: one for each GPU index."""
        return sum(map(len, self.vvgpu))


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise HugeCtrError(f"{name} is {value!r}; expected a whole number from {least} to {MOST}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise HugeCtrError(f"{name} is {value!r}; expected True or False")
    return value


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise HugeCtrError(f"{name} is {value!r}; expected the name of a file, or '' for none")
    return value


def _paths(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, Sequence):
        raise HugeCtrError(f"{name} is {value!r}; expected the name of a file, or a list of them")
    return tuple(_path(name, item) for item in value)


def _gpus(value: Any) -> tuple[tuple[int, ...], ...]:
    rule = "expected a list of GPU indices for each node, such as [[0, 1]], or [0, 1] for one node"
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise HugeCtrError(f"vvgpu is {value!r}; {rule}")
    nodes = [value] if all(isinstance(gpu, int) for gpu in value) else value
    for node in nodes:
        if not isinstance(node, Sequence) or not node:
            raise HugeCtrError(f"vvgpu is {value!r}; {rule}")
        if any(isinstance(gpu, bool) or not isinstance(gpu, int) or gpu < 0 for gpu in node):
            raise HugeCtrError(f"vvgpu is {value!r}; {rule}")
        if len(set(node)) != len(node):
            raise HugeCtrError(f"vvgpu is {value!r}; a node names a GPU twice")
    return tuple(tuple(node) for node in nodes)


def solver_parser_helper(
    seed: int = 0,
    max_eval_batches: int = 100,
    batchsize_eval: int = 2048,
    batchsize: int = 2048,
    model_file: str = "",
    dense_opt_states_file: str = "",
    embedding_files: str | Sequence[str] = (),
    sparse_opt_states_file: str | Sequence[str] = (),
    vvgpu: Sequence[Sequence[int]] | Sequence[int] = ((0,),),
    use_mixed_precision: bool = False,
    enable_tf32_compute: bool = False,
    scaler: float = 1.0,
    i64_input_key: bool = False,
    use_algorithm_search: bool = True,
    use_cuda_graph: bool = True,
    repeat_dataset: bool = True,
    *,
    sharding_plan: str = "",
    eval_metrics: Sequence[str] = ("AUC",),
) -> SolverParser:
    """Return the settings of a run.

    Args:
        seed: of initial weights and dropout.
        max_eval_batches: of an evaluation.
        batchsize_eval: samples of an evaluation step, over all ranks.
        batchsize: samples of a training step, over all ranks.
        model_file: dense model to begin with.
        dense_opt_states_file: states of the dense optimizer to begin with.
        embedding_files: sparse models to begin with, one for each embedding layer.
        sparse_opt_states_file: states of the embeddings' optimizers to begin with.
        vvgpu: GPU indices of each node; every index is a rank, on a machine without GPUs too. A flat list is one node.
        use_mixed_precision: tensors in half precision, weights in float32.
        enable_tf32_compute: float32 matrix products in TF32, on GPUs that have it.
        scaler: that the loss is multiplied by in mixed precision: 128, 256, 512 or 1024.
        i64_input_key: keys have 64 bits, otherwise 32.
        use_algorithm_search: accepted; PyTorch's libraries choose their algorithms themselves.
        use_cuda_graph: accepted; PyTorch launches kernels one by one, and results are the same.
        repeat_dataset: begin the data anew at its end, otherwise epochs end.
        sharding_plan: file of a sharding plan; '' is HugeCTR's placement. Not an argument of HugeCTR's.
        eval_metrics: "AUC", "AverageLoss" or both, with a threshold behind a colon. Not an argument of HugeCTR's.

    Raises:
        HugeCtrError: a value is not allowed; the message names it.
    """
    gpus = _gpus(vvgpu)
    num_ranks = sum(map(len, gpus))
    for name, size in (("batchsize", batchsize), ("batchsize_eval", batchsize_eval)):
        if _whole(name, size, 1) % num_ranks:
            raise HugeCtrError(f"{name} is {size}; it must be a multiple of the {num_ranks} GPUs in vvgpu")
    if isinstance(scaler, bool) or not isinstance(scaler, int | float):
        raise HugeCtrError(f"scaler is {scaler!r}; expected a number")
    if _flag("use_mixed_precision", use_mixed_precision):
        if scaler not in SCALERS:
            allowed = ", ".join(map(str, SCALERS))
            raise HugeCtrError(f"scaler is {scaler}; with use_mixed_precision it must be one of {allowed}")
    elif scaler != 1.0:
        raise HugeCtrError(f"scaler is {scaler}; without use_mixed_precision it must be 1.0")
    parse_metrics(eval_metrics)
    return SolverParser(
        seed=_whole("seed", seed, 0),
        max_eval_batches=_whole("max_eval_batches", max_eval_batches, 1),
        batchsize_eval=batchsize_eval,
        batchsize=batchsize,
        model_file=_path("model_file", model_file),
        dense_opt_states_file=_path("dense_opt_states_file", dense_opt_states_file),
        embedding_files=_paths("embedding_files", embedding_files),
        sparse_opt_states_file=_paths("sparse_opt_states_file", sparse_opt_states_file),
        vvgpu=gpus,
        use_mixed_precision=use_mixed_precision,
        enable_tf32_compute=_flag("enable_tf32_compute", enable_tf32_compute),
        scaler=float(scaler),
        i64_input_key=_flag("i64_input_key", i64_input_key),
        use_algorithm_search=_flag("use_algorithm_search", use_algorithm_search),
        use_cuda_graph=_flag("use_cuda_graph", use_cuda_graph),
        repeat_dataset=_flag("repeat_dataset", repeat_dataset),
        sharding_plan=_path("sharding_plan", sharding_plan),
        eval_metrics=tuple(eval_metrics),
    )
