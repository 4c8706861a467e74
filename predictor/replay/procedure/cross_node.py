"""``cross_node_predict``: ranks with traces of their own, aligned at every collective; who waits for whom."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from predictor.base.command_line import Parser
from predictor.base.errors import ConfigError
from predictor.replay.mixed import Place, mixed_graph
from predictor.replay.procedure.arguments import add_model
from predictor.replay.procedure.command import folders_of, new_parser
from predictor.replay.procedure.folders import Folders
from predictor.replay.procedure.opened import OpenedStep, open_ranks
from predictor.report.text import duration
from predictor.traces.global_graph import GlobalGraph, global_graph
from predictor.traces.global_replay import GlobalReplay, replay_global

MOST_COLLECTIVES = 8
LEAST_WAIT_US = 0.5  # that is worth a line


def parser() -> Parser:
    """Return the command line's parser."""
    result = new_parser(
        "cross_node_predict", "Predict the step of a job whose ranks were traced apart, on any devices, or together."
    )
    add_model(result)
    result.add_argument(
        "--file_names",
        "--file-names",
        "--file_name",
        nargs="+",
        metavar="TRACE",
        help="one trace: all its ranks; several: one a rank, in their order, the same one twice too (all of the model)",
    )
    result.add_argument(
        "--target_trace_idx",
        "--target-trace-idx",
        type=int,
        nargs="+",
        default=[0],
        metavar="I",
        help="step of the traces, one for all or one each (0)",
    )
    return result


def answer(arguments: argparse.Namespace) -> str:
    """Return every rank's step, who waits for whom, and the collectives with the longest waits.

    Raises:
        ConfigError: there are no such traces or steps, or the ranks run different collectives.
    """
    job = _job(folders_of(arguments), arguments)
    replayed = replay_global(job.graph)
    return "\n".join(_text(arguments.model_name, job, replayed))


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks to replay together.

    Attributes:
        names: of the trace of each rank, in the order of the graph's ranks.
        traced_us: step of each rank as measured.
        graph: of all ranks.
        notes: on what could not be read.
    """

    names: Sequence[str]
    traced_us: Sequence[float]
    graph: GlobalGraph
    notes: Sequence[str]


def _job(folders: Folders, arguments: argparse.Namespace) -> Job:
    model = arguments.model_name
    names = arguments.file_names or folders.trace_names(model)
    if not names:
        folders.traces(model, "*")  # tells where traces are expected
    indices = arguments.target_trace_idx
    if len(indices) not in (1, len(names)):
        raise ConfigError(
            f"--target_trace_idx has {len(indices)} values; give one, or one for each of {len(names)} traces"
        )
    indices = indices * len(names) if len(indices) == 1 else indices
    jobs: dict[tuple[str, int], list[OpenedStep]] = {}
    for name, index in zip(names, indices, strict=True):
        if (name, index) not in jobs:
            jobs[name, index] = open_ranks(folders.traces(model, name), index)
    notes = [f"{name}: {note}" for (name, _), ranks in jobs.items() for step in ranks for note in step.notes]
    if len(names) == 1:
        measured = [step.local for ranks in jobs.values() for step in ranks]
        graph = global_graph(measured, sizes_agree=False)
        return Job(names * len(measured), [local.step_us for local in graph.ranks], graph, notes)
    graphs = {key: global_graph([step.local for step in ranks], sizes_agree=False) for key, ranks in jobs.items()}
    places = []
    for rank, key in enumerate(zip(names, indices, strict=True)):
        ranks = graphs[key].ranks
        places.append(Place(graphs[key], ranks[rank % len(ranks)].rank))
    traced = [place.job.local(place.rank).step_us for place in places]
    return Job(names, traced, mixed_graph(places), notes)


def _text(model: str, job: Job, replayed: GlobalReplay) -> Iterator[str]:
    yield f"{model}: step of {len(replayed.ranks)} ranks {duration(replayed.step_us)}"
    yield from (f"note: {note}" for note in dict.fromkeys([*job.notes, *job.graph.notes]))
    yield ""
    yield (
        f"{'rank':>4} {'trace':20} {'device':16} {'traced':>9} {'predicted':>9} {'busy':>9} {'waiting':>9} "
        f"{'traffic':>9} {'idle':>9}"
    )
    for name, traced_us, local, rank in zip(job.names, job.traced_us, job.graph.ranks, replayed.ranks, strict=True):
        times = (traced_us, rank.step_us, rank.busy_us, rank.waiting_us, rank.communicating_us, rank.idle_us)
        device = local.device_name or local.backend
        yield f"{rank.rank:4} {name:20.20} {device:16.16} {' '.join(f'{duration(us):>9}' for us in times)}"
    yield ""
    yield from _waits(replayed)


def _waits(replayed: GlobalReplay) -> Iterator[str]:
    waits = sorted(replayed.waited_for_us().items(), key=lambda item: -item[1])
    shown = [(pair, us) for pair, us in waits if us >= LEAST_WAIT_US]
    if not shown:
        yield "no rank waits for another one"
        return
    for (waiting, last), us in shown:
        yield f"rank {waiting} waits {duration(us)} for rank {last}"
    longest = sorted(replayed.collectives, key=lambda collective: -max(collective.waits_us.values(), default=0.0))
    yield ""
    yield "collectives with the longest waits: arrives last, the others wait up to, transfer"
    for collective in longest[:MOST_COLLECTIVES]:
        most = max(collective.waits_us.values(), default=0.0)
        if most >= LEAST_WAIT_US:
            size = (
                f"{collective.collective.size_bytes / 1e6:.2f} MB"
                if collective.collective.size_bytes
                else "size unknown"
            )
            yield (
                f"  {collective.collective.name:14} {size:>12}  rank {collective.last_rank:<3} {duration(most):>10} "
                f"{duration(collective.end_us - collective.start_us):>10}"
            )
