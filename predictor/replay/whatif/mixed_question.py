"""Question of ``python -m predictor mixed``: a job on different devices, from traces on each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path

from predictor.core.base.errors import ConfigError
from predictor.replay.files.events import RankTrace
from predictor.replay.files.reading import read_traces
from predictor.replay.graph.build_graph import graph_between
from predictor.replay.graph.global_graph import GlobalGraph, global_graph
from predictor.replay.graph.global_replay import GlobalReplay, replay_global
from predictor.replay.graph.local_graph import LocalGraph, TaskKind
from predictor.replay.graph.steps import choose_steps
from predictor.replay.whatif.batch_split import Balance, LocalTime, balance, local_time_of_two
from predictor.replay.whatif.devices import DeviceRatios, innermost_known, known_device, source_device
from predictor.replay.whatif.mixed import OperatorRatio, Place, measured_jobs, mixed_graph

ON_GPU = "@"


@dataclass(frozen=True, slots=True)
class MixedQuestion:
    """A mixed job as the user states it.

    Attributes:
        devices: TRACE or TRACE@GPU each: what a trace was measured on, or that trace moved to another GPU.
        ranks: how many run on each of them; () for one each, or for all traced ranks of a single one.
        samples: of one step of one rank of each trace; () where the batch is not to be split.
        global_batch: samples of all ranks; None: as traced.
        multiple: of which every rank's samples are.
        most: samples that fit into the memory of one rank on each device; () for any.
        second: traces of the same devices at another batch size; () for none.
        second_samples: theirs.
        step: of the traces; None: as ``choose_steps`` chooses.
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
    counts = _one_each("--ranks", question.ranks, question.devices)
    samples = _one_each("--samples", question.samples, question.devices)
    asks_for_split = question.second or question.most or question.global_batch is not None or question.multiple != 1
    if not samples and asks_for_split:
        raise ConfigError("--samples is missing; splitting a batch needs the samples of a step of each trace")
    opened = _Opened(question.step, question.devices, question.second)
    counts = counts or opened.default_counts(question.devices)
    devices = [device for device, count in zip(question.devices, counts, strict=True) for _ in range(count)]
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
        times=list(_of_two(question, opened, places, samples, counts)) if question.second else None,
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
    question: MixedQuestion, opened: _Opened, places: Sequence[Place], samples: Sequence[int], counts: Sequence[int]
) -> Iterator[LocalTime]:
    """Yield every rank's local time from the traces of its device at two batch sizes."""
    other_samples = _one_each("--second-samples", question.second_samples, question.devices)
    if len(question.second) != len(question.devices) or not other_samples:
        raise ConfigError(
            f"--second has {len(question.second)} traces and --second-samples {len(other_samples)} numbers; give one "
            f"of each for each of {len(question.devices)} traces"
        )
    ranks = zip(question.second, other_samples, counts, strict=True)
    seconds = [(trace, size, number) for trace, size, count in ranks for number in range(count)]
    for place, size, (trace, other_size, number) in zip(places, samples, seconds, strict=True):
        yield local_time_of_two(place, size, opened.place(trace, number), other_size)


def gpu_of(device: str) -> tuple[str, str]:
    """Return trace and GPU of TRACE@GPU; of a TRACE that exists, whatever is in its name, no GPU."""
    trace, sign, gpu = device.rpartition(ON_GPU)
    return (device, "") if not sign or Path(device).exists() else (trace, gpu)


def _trace_of(device: str) -> str:
    return gpu_of(device)[0]


class _Opened:
    """The traces of a question, each read once, with the jobs that they are from."""

    def __init__(self, step: int | None, *runs: Sequence[str]) -> None:
        """Read all traces.

        Args:
            step: of each.
            runs: devices as in ``MixedQuestion``; traces of two of them are never of one job.
        """
        self.notes: list[str] = []
        self._jobs: dict[str, tuple[GlobalGraph, list[int]]] = {}
        self._ratios: dict[tuple[str, str], DeviceRatios] = {}
        for devices in runs:
            self._open([trace for trace in dict.fromkeys(map(_trace_of, devices)) if trace not in self._jobs], step)

    def _open(self, paths: Sequence[str], step: int | None) -> None:
        """Read traces of which those given singly may be of one job."""
        alone: dict[str, RankTrace] = {}
        for trace in paths:
            traces = read_traces([trace], partial=True)
            self.notes += [f"{read.path.name}: {note}" for read in traces for note in read.notes]
            if len(traces) == 1:
                alone[trace] = traces[0]
            else:
                graph = global_graph(_in_one_step(traces, step))
                self._jobs[trace] = graph, [local.rank for local in graph.ranks]
        singles = dict(zip(alone, _in_steps(list(alone.values()), step), strict=True))
        for job in measured_jobs(list(singles.values())):
            for trace, local in singles.items():
                if any(rank is local for rank in job.ranks):
                    self._jobs[trace] = job, [local.rank]

    def default_counts(self, devices: Sequence[str]) -> list[int]:
        """Return how many ranks run on each device where nobody says: all of a single trace, or else one each."""
        traced = [len(self._jobs[_trace_of(device)][1]) for device in devices]
        if len(devices) == 1:
            return traced
        for device, ranks in zip(devices, traced, strict=True):
            if ranks > 1:
                self.notes.append(f"{device} has traces of {ranks} ranks, of which 1 takes part; --ranks takes more")
        return [1] * len(devices)

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
            self._ratios[key] = DeviceRatios(source_device(local, device), known_device(gpu, device))
        ratios = self._ratios[key]
        if not end:
            self.notes += _bases(local, ratios)

        def at_end(of: LocalGraph, operator: int) -> float:
            ratio = ratios.of(innermost_known(of, operator))
            return ratio.factor * exp(end * ratio.log_error)

        return at_end


def _bases(local: LocalGraph, ratios: DeviceRatios) -> Iterator[str]:
    """Yield on what the kernels' times on another GPU rest."""
    by_basis: dict[str, float] = {}
    for task in local.tasks:
        if task.kind is TaskKind.KERNEL:
            basis = ratios.of(innermost_known(local, task.operator)).basis
            by_basis[basis] = by_basis.get(basis, 0.0) + task.duration_us
    if sum(by_basis.values()):
        yield ratios.told(local.device_name, by_basis)


def _in_one_step(traces: Sequence[RankTrace], step: int | None) -> list[LocalGraph]:
    """Return the graphs of one step of several ranks."""
    windows = choose_steps(traces, step)
    return [graph_between(trace, window) for trace, window in zip(traces, windows, strict=True)]


def _in_steps(traces: Sequence[RankTrace], step: int | None) -> list[LocalGraph]:
    """Return the graphs of traces that were given singly; those that may be ranks of one job are of one step."""
    jobs: list[list[int]] = []
    for at, trace in enumerate(traces):
        fitting = (
            job
            for job in jobs
            if (trace.world_size or 1) > 1
            and all(traces[o].world_size == trace.world_size and traces[o].rank != trace.rank for o in job)
        )
        job = next(fitting, None)
        if job is None:
            jobs.append([at])
        else:
            job.append(at)
    graphs = {
        at: local for job in jobs for at, local in zip(job, _in_one_step([traces[at] for at in job], step), strict=True)
    }
    return [graphs[at] for at in range(len(traces))]
