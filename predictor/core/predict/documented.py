"""The documented Python interface: one call for a whole step, and ``Predictor`` for single operators and collectives.

It speaks the short names (mp, b, h, l, dim, fwd …) and elements of two bytes; everything it returns is a plain float in
microseconds, and it prints nothing. docs/python-api.md documents it.
"""

from __future__ import annotations

from pathlib import Path

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import must_divide, whole
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, Topology, collective_shape
from predictor.core.costs.folder import COLLECTIVE_FOLDER, OPERATOR_FOLDER
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.regressors import Regressor
from predictor.core.costs.variants import as_tabled
from predictor.core.costs.work import element_bytes
from predictor.core.plan.loading import check_gpu, load, open_measured, require
from predictor.core.plan.short_config import translate
from predictor.core.schema.finding import folder_of
from predictor.core.step.prediction import predict
from predictor.core.workload.layout import Layout

DIRECTIONS = {"fwd": Direction.FORWARD, "bwd": Direction.BACKWARD}
ENCODER_CONFIG = ("tensor_parallel_size", "micro_batch_size", "num_attention_heads", "sequence_length", "hidden_size")
# Sizes that the documented interface does not have, as in the published measurements: GPT-2's vocabulary, usual FFN.
VOCAB_SIZE = 50257
FFN_FACTOR = 4
LARGEST_MESSAGE = 10**13
MEASURED_COLLECTIVES = "fp16"


def one_batch_predict(config_path: str) -> float:
    """Predict one training step (parameter update) in microseconds.

    Args:
        config_path: a YAML configuration, in the short or the full form.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        KeyError: a required key is missing.
        ValueError: a value is not allowed, or nothing published answers for it.
    """
    return float(predict(*load(config_path)).step.us)


class Predictor:
    """Times single operators and collectives; loads each regressor once.

    Attributes:
        operator_dict: path of a published file and direction → regressor, of the operators timed so far.
        nccl_dict: likewise of collectives.
    """

    def __init__(self) -> None:
        """Start with nothing loaded."""
        self.operator_dict: dict[str, Regressor] = {}
        self.nccl_dict: dict[str, Regressor] = {}

    def operator_statistic(
        self,
        data_folder: str,
        config_folder: str,
        gpu_name: str,
        function_list: list[str],
        precision: str,
        encoder_config: tuple[int, int, int, int, int],
        propagation: str,
    ) -> float:
        """Return the time of one call of every operator named, added up, in microseconds.

        Args:
            data_folder: operator folder of a published system; relative to the current folder, else to bundled data.
            config_folder: the same folder again.
            gpu_name: the system's GPU.
            function_list: operators by short name; a repeated name counts again.
            precision: of the measurements, and of the loss's logits.
            encoder_config: (mp, b, h, l, dim); vocabulary 50257, FFN 4 × dim, causal attention.
            propagation: "fwd" or "bwd".

        Raises:
            ValueError: a value is not allowed, or nothing published answers for it.
        """
        direction = _direction(propagation)
        if not isinstance(function_list, list | tuple):
            raise ConfigError(f"function_list is {function_list!r}; expected a list of operator names")
        system = _system(data_folder, config_folder, OPERATOR_FOLDER, gpu_name, precision)
        call = _layer_call(encoder_config, element_bytes(system.precision))
        total_us = 0.0
        for name in function_list:
            operator = _layer_operator(name)
            require(system, operator.name)
            shape = operator.shape_in(call)
            total_us += _time_us(self.operator_dict, system, operator, direction, shape)
        return total_us

    def mp_allreduce(
        self, nccl_data_folder: str, nccl_config_folder: str, gpu_name: str, shape: int, mp: int, gpu_per_node: int
    ) -> float:
        """Return the time of an all-reduce of ``shape`` elements over ``mp`` ranks that fill nodes in order."""
        system = _system(nccl_data_folder, nccl_config_folder, COLLECTIVE_FOLDER, gpu_name, MEASURED_COLLECTIVES)
        layout = _layout(system, mp, 1, 1, gpu_per_node)
        return self._collective_us(system, "all_reduce", _elements(shape), layout.tensor_group())

    def dp_allreduce(
        self,
        nccl_data_folder: str,
        nccl_config_folder: str,
        gpu_name: str,
        shape: int,
        mp: int,
        dp: int,
        gpu_per_node: int,
    ) -> float:
        """Return the time of an all-reduce of ``shape`` elements over ``dp`` ranks that lie ``mp`` apart."""
        system = _system(nccl_data_folder, nccl_config_folder, COLLECTIVE_FOLDER, gpu_name, MEASURED_COLLECTIVES)
        layout = _layout(system, mp, dp, 1, gpu_per_node)
        return self._collective_us(system, "all_reduce", _elements(shape), layout.gradient_group())

    def dp_allgather(
        self,
        nccl_data_folder: str,
        nccl_config_folder: str,
        gpu_name: str,
        shape: int,
        mp: int,
        dp: int,
        gpu_per_node: int,
    ) -> float:
        """Return the time of an all-gather over ``dp`` ranks, each of which contributes ``shape`` elements."""
        system = _system(nccl_data_folder, nccl_config_folder, COLLECTIVE_FOLDER, gpu_name, MEASURED_COLLECTIVES)
        layout = _layout(system, mp, dp, 1, gpu_per_node)
        return self._collective_us(system, "all_gather", _elements(shape), layout.gradient_group())

    def pp_p2p(
        self,
        nccl_data_folder: str,
        nccl_config_folder: str,
        gpu_name: str,
        shape: int,
        mp: int,
        dp: int,
        pp: int,
        gpu_per_node: int,
    ) -> float:
        """Return the time of one message between neighbouring stages, split over ``mp`` ranks.

        It stays inside a node if the whole pipeline does; otherwise the slowest pair of neighbours decides.
        """
        system = _system(nccl_data_folder, nccl_config_folder, COLLECTIVE_FOLDER, gpu_name, MEASURED_COLLECTIVES)
        layout = _layout(system, mp, dp, pp, gpu_per_node)
        share = max(1, _elements(shape) // layout.tensor_parallel_size)
        group = layout.pipeline_hop() if layout.pipeline_parallel_size > 1 else Topology(1, 1)
        return self._collective_us(system, "point_to_point", share, group)

    def _collective_us(self, system: PublishedSystem, name: str, elements: int, group: Topology) -> float:
        """Return the time of one collective; a group of one rank has nothing to do."""
        if group.ranks < 2:
            return 0.0
        shape = collective_shape(name, elements * element_bytes(system.precision), group)
        return _time_us(self.nccl_dict, system, COLLECTIVES[name], Direction.FORWARD, shape)


def _time_us(
    loaded: dict[str, Regressor],
    system: PublishedSystem,
    operator: Operator,
    direction: Direction,
    shape: Shape,
) -> float:
    """Return the time of one call; its regressor is loaded if it was not yet."""
    key = f"{system.files.folder / system.files.name(operator.regressor_name)}:{direction}"
    if key not in loaded:
        loaded[key] = system.regressor(operator, direction)
    return float(loaded[key].answer(operator, direction, shape).us)


def _system(data_folder: str, config_folder: str, kind: str, gpu_name: str, precision: str) -> PublishedSystem:
    """Open the published system that both folders are of."""
    here = Path.cwd()
    folders = [
        folder_of(key, value, kind, here)
        for key, value in (("data_folder", data_folder), ("config_folder", config_folder))
    ]
    if folders[0] != folders[1]:
        raise ConfigError(
            f"data_folder is of {folders[0].name} and config_folder of {folders[1].name}; expected one system"
        )
    if not isinstance(precision, str):
        raise ConfigError(f"precision is {precision!r}; expected a name such as 'fp16'")
    system = as_tabled(open_measured(folders[0], precision))
    check_gpu("gpu_name", gpu_name, system)
    return system


def _direction(propagation: object) -> Direction:
    """Return the direction that "fwd" or "bwd" stands for."""
    if not isinstance(propagation, str) or propagation not in DIRECTIONS:
        raise ConfigError(f"propagation is {propagation!r}; expected 'fwd' or 'bwd'")
    return DIRECTIONS[propagation]


def _layer_operator(name: object) -> Operator:
    """Return an operator of a layer by its short name or its own."""
    inside = name if isinstance(name, str) and name in catalogue() else translate(name, "function_list")
    operator = catalogue()[inside]
    if operator.layer_shape is None:
        raise ConfigError(f"function_list names {name!r}, which does not run once per layer; a whole step includes it")
    return operator


def _layer_call(encoder_config: object, logit_bytes: int) -> LayerCall:
    """Return the sizes of (mp, b, h, l, dim), checked."""
    if not isinstance(encoder_config, list | tuple) or len(encoder_config) != len(ENCODER_CONFIG):
        raise ConfigError(f"encoder_config is {encoder_config!r}; expected five numbers: mp, b, h, l, dim")
    mp, b, h, length, dim = (whole(name, value) for name, value in zip(ENCODER_CONFIG, encoder_config, strict=True))
    must_divide("num_attention_heads", h, "hidden_size", dim)
    must_divide("tensor_parallel_size", mp, "num_attention_heads", h)
    return LayerCall(
        micro_batch_size=b,
        sequence_length=length,
        hidden_size=dim,
        num_attention_heads=h,
        ffn_hidden_size=FFN_FACTOR * dim,
        vocab_size=VOCAB_SIZE,
        tensor_parallel_size=mp,
        logit_bytes=logit_bytes,
    )


def _elements(shape: int) -> int:
    return whole("shape", shape, largest=LARGEST_MESSAGE)


def _layout(system: PublishedSystem, mp: int, dp: int, pp: int, gpu_per_node: int) -> Layout:
    """Return a layout of checked sizes."""
    used = whole("gpu_per_node", gpu_per_node)
    if used > system.hardware.gpus_per_node:
        raise ConfigError(f"gpu_per_node is {used}; {system.name} has {system.hardware.gpus_per_node}")
    return Layout(
        tensor_parallel_size=whole("tensor_parallel_size", mp),
        pipeline_parallel_size=whole("pipeline_parallel_size", pp),
        data_parallel_size=whole("data_parallel_size", dp),
        gpus_per_node=used,
    )
