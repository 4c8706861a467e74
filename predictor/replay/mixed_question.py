"""What ``python -m predictor mixed`` asks: a job on different devices, from traces of the job on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path

from predictor.base.bundled import systems
from predictor.base.errors import ConfigError, nearest
from predictor.replay.batch_split import Balance, LocalTime, balance, local_time_of_two
from predictor.replay.devices import DeviceRatios, device_named, device_traced
from predictor.replay.known_operators import known_around
from predictor.replay.mixed import OperatorRatio, Place, measured_jobs, mixed_graph
from predictor.traces.build_graph import local_graph
from predictor.traces.global_graph import GlobalGraph, global_graph
from predictor.traces.global_replay import GlobalReplay, replay_global
from predictor.traces.local_graph import LocalGraph, TaskKind, TracedOperator
from predictor.traces.reading import read_traces

ON_GPU = "@"


@dataclass(frozen=True, slots=True)
class MixedQuestion:
    """A mixed job as the user states it.

    Attributes:
        devices: TRACE or TRACE@GPU each: what a trace was measured on, or that trace moved to another GPU.
        ranks: how many run on each of them; () for one each.
        samples: of one step of one rank of each trace; () where the batch is not to be split.
        global_batch: samples of all ranks; None: as traced.
        multiple: of which every rank's samples are.
        most: samples that fit into the memory of one rank on each device; () for any.
        second: traces of the same devices at another batch size; () for none.
        second_samples: theirs.
        step: of the traces; None: as ``choose_step`` chooses.
    """

    devices: Sequence[str]
    ranks: Sequence[int] = ()
    samples: Sequence[int] = ()
    global_batch: int | None = None
    multiple: int = 1
    most: Sequence[int] = ()
    second: Sequence[str] = ()
    second_samples: Sequence[int] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class MixedAnswer:
    """A mixed job replayed.

    Attributes:
        devices: by rank, what was asked for.
        graph: of all ranks, with their traced samples.
        replay: of it.
        bounds_us: of the step, with all ratios to other GPUs at the ends of their 90 % intervals; None without any.
        balance: the split of the batch; None where no samples were given.
        notes: one line each.
    """

    devices: Sequence[str]
    graph: GlobalGraph
    replay: GlobalReplay
    bounds_us: tuple[float, float] | None
    balance: Balance | None
    notes: Sequence[str]


def answer(question: MixedQuestion) -> MixedAnswer:
    """Replay a mixed job and, where samples are given, split its batch.

    Raises:
        ConfigError: the question cannot be answered; the message says why.
    """
    counts = _one_each("--ranks", question.ranks, question.devices) or [1] * len(question.devices)
    samples = _one_each("--samples", question.samples, question.devices)
    asks_for_split = question.second or question.most or question.global_batch is not None or question.multiple != 1
    if not samples and asks_for_split:
        raise ConfigError("--samples is missing; splitting a batch needs the samples of a step of each trace")
    devices = [device for device, count in zip(question.devices, counts, strict=True) for _ in range(count)]
    opened = _Opened(question.step, [*question.devices, *question.second])
    places = [opened.place(device, devices[:rank].count(device)) for rank, device in enumerate(devices)]
    graph = mixed_graph(places)
    of_rank = [size for size, count in zip(samples, counts, strict=bool(samples)) for _ in range(count)]
    split = _balance(question, opened, places, of_rank, counts) if samples else None
    notes = dict.fromkeys([*opened.notes, *graph.notes])
    return MixedAnswer(devices, graph, replay_global(graph), _bounds_us(opened, devices), split, tuple(notes))


def _balance(
    question: MixedQuestion, opened: _Opened, places: Sequence[Place], samples: Sequence[int], counts: Sequence[int]
) -> Balance:
    room = _one_each("--most", question.most, question.devices)
    return balance(
        places,
        samples,
        question.global_batch,
        times=list(_of_two(question, opened, places, samples)) if question.second else None,
        multiple=question.multiple,
        most=[most for most, count in zip(room, counts, strict=True) for _ in range(count)] if room else None,
    )


def _one_each(option: str, values: Sequence[int], devices: Sequence[str]) -> list[int]:
    if values and (len(values) != len(devices) or min(values) < 1):
        raise ConfigError(f"{option} is {' '.join(map(str, values))}; give 1 or more for each of {len(devices)} traces")
    return list(values)


def _bounds_us(opened: _Opened, devices: Sequence[str]) -> tuple[float, float] | None:
    """Return the step with all ratios at their lower and at their upper ends; None where no rank was moved."""
    if not any(gpu_of(device)[1] for device in devices):
        return None
    low, high = (
        replay_global(
            mixed_graph(
                [opened.place(device, devices[:rank].count(device), end) for rank, device in enumerate(devices)]
            )
        ).step_us
        for end in (-1.0, 1.0)
    )
    return low, high


def _of_two(
    question: MixedQuestion, opened: _Opened, places: Sequence[Place], samples: Sequence[int]
) -> Iterator[LocalTime]:
    """Yield every rank's local time from the traces of its device at two batch sizes."""
    other_samples = _one_each("--second-samples", question.second_samples, question.devices)
    if len(question.second) != len(question.devices) or not other_samples:
        raise ConfigError(
            f"--second has {len(question.second)} traces and --second-samples {len(other_samples)} numbers; give one "
            f"of each for each of {len(question.devices)} traces"
        )
    counts = question.ranks or [1] * len(question.devices)
    ranks = zip(question.second, other_samples, counts, strict=True)
    seconds = [(trace, size, number) for trace, size, count in ranks for number in range(count)]
    for place, size, (trace, other_size, number) in zip(places, samples, seconds, strict=True):
        yield local_time_of_two(place, size, opened.place(trace, number), other_size)


def gpu_of(device: str) -> tuple[str, str]:
    """Return trace and GPU of TRACE@GPU; of a TRACE that exists, whatever is in its name, no GPU."""
    trace, sign, gpu = device.rpartition(ON_GPU)
    return (device, "") if not sign or Path(device).exists() else (trace, gpu)


class _Opened:
    """The traces of a question, each read once, with the jobs that they are from."""

    def __init__(self, step: int | None, devices: Sequence[str]) -> None:
        """Read all traces.

        Args:
            step: of each.
            devices: as in ``MixedQuestion``.
        """
        self.notes: list[str] = []
        self._jobs: dict[str, tuple[GlobalGraph, list[int]]] = {}
        self._ratios: dict[tuple[str, str], DeviceRatios] = {}
        alone: dict[str, LocalGraph] = {}
        for trace in dict.fromkeys(gpu_of(device)[0] for device in devices):
            traces = read_traces([trace], partial=True)
            self.notes += [f"{read.path.name}: {note}" for read in traces for note in read.notes]
            locals_ = [local_graph(read, step) for read in traces]
            if len(locals_) == 1:
                alone[trace] = locals_[0]
            else:
                graph = global_graph(locals_)
                self._jobs[trace] = graph, [local.rank for local in graph.ranks]
        for job in measured_jobs(list(alone.values())):
            for trace, local in alone.items():
                if any(rank is local for rank in job.ranks):
                    self._jobs[trace] = job, [local.rank]

    def place(self, device: str, number: int, end: float = 0.0) -> Place:
        """Return the place of the nth rank on a device.

        Args:
            device: TRACE or TRACE@GPU.
            number: from 0; the ranks of a trace are taken in turn.
            end: of the 90 % intervals of ratios to the GPU: −1, 0 or 1 for lower end, middle, upper end.

        Raises:
            ConfigError: nothing is known of one of the GPUs.
        """
        trace, gpu = gpu_of(device)
        job, ranks = self._jobs[trace]
        place = Place(job, ranks[number % len(ranks)])
        return place._replace(ratio=self._ratio(place, device, gpu, end), device_name=gpu) if gpu else place

    def _ratio(self, place: Place, device: str, gpu: str, end: float) -> OperatorRatio:
        local = place.job.local(place.rank)
        key = local.device_name, gpu
        if key not in self._ratios:
            self._ratios[key] = _ratios(local, device, gpu)
        ratios = self._ratios[key]
        if not end:
            self.notes += _bases(local, ratios)
        known = _innermost_known(local)
        return lambda operator: _at_end(ratios, known(operator), end)


def _at_end(ratios: DeviceRatios, operator: TracedOperator | None, end: float) -> float:
    ratio = ratios.of(operator)
    return ratio.factor * exp(end * ratio.log_error)


def _ratios(local: LocalGraph, device: str, gpu: str) -> DeviceRatios:
    if local.backend == "cpu":
        raise ConfigError(f"{device}: the trace is of a CPU; kernels of a GPU are needed to move to another")
    by, to = device_traced(local.device_name), device_named(gpu)
    if by is None:
        raise ConfigError(
            f"{device}: nothing is known of the GPU of the trace, {local.device_name or 'without a name'}"
        )
    if to is None:
        known = systems()
        raise ConfigError(
            f"{device}: nothing is known of {gpu}.{nearest(gpu, known)} Published systems: {', '.join(known)}"
        )
    return DeviceRatios(by, to)


def _innermost_known(local: LocalGraph) -> Callable[[TracedOperator | None], TracedOperator | None]:
    """Return the function from an operator to the innermost one around it that the predictor knows."""
    positions = {id(operator): at for at, operator in enumerate(local.operators)}

    def known(operator: TracedOperator | None) -> TracedOperator | None:
        return None if operator is None else local.operators[known_around(local, positions[id(operator)])]

    return known


def _bases(local: LocalGraph, ratios: DeviceRatios) -> Iterator[str]:
    """Yield on what the kernels' times on another GPU rest."""
    known = _innermost_known(local)
    by_basis: dict[str, float] = {}
    for task in local.tasks:
        if task.kind is TaskKind.KERNEL:
            operator = local.operators[task.operator] if task.operator >= 0 else None
            basis = ratios.of(known(operator)).basis
            by_basis[basis] = by_basis.get(basis, 0.0) + task.duration_us
    whole = sum(by_basis.values())
    if whole:
        shares = ", ".join(f"{us / whole:.0%} by {basis}" for basis, us in by_basis.items())
        yield f"kernel time moved from {ratios.by.name} to {ratios.to.name}: {shares}; host, copies, collectives stay"
