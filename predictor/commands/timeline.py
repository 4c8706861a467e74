"""``timeline``: the predicted step as a trace file, as a picture, and as traces for network simulators."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.commands.config_arguments import add_config, config_path, predicted
from predictor.commands.outputs import Output, check_outputs, write_outputs
from predictor.commands.parser import Commands, add_command
from predictor.core.base.errors import ConfigError
from predictor.core.base.json_text import as_json
from predictor.core.base.words import counted

if TYPE_CHECKING:
    from predictor.core.predict.prediction import StepPrediction
    from predictor.core.timeline.trace import StepTrace


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "timeline", "the step as a trace file and a picture", answer)
    add_config(command)
    command.add_argument("--system", metavar="NAME", help="published system, instead of the configuration's")
    command.add_argument("--trace", metavar="FILE", help="write a Chrome trace, for ui.perfetto.dev")
    command.add_argument(
        "--layers",
        action=argparse.BooleanOptionalAction,
        help="of every pass in the trace, with their parts (where they are at most 20,000)",
    )
    command.add_argument("--svg", metavar="FILE", help="write a picture of the pipeline")
    command.add_argument("--chakra", metavar="FOLDER", help="write Chakra execution traces, for network simulators")


def _in_full(step: StepPrediction, trace: StepTrace, layers: bool | None) -> tuple[StepTrace, str]:
    """Return a trace with memory and, where asked for or few enough, with layers; and what was left out."""
    from predictor.core.step.layer_spans import MOST_LAYER_SPANS, num_layer_spans, with_layers
    from predictor.core.step.memory_spans import memory_counters

    prediction = step.prediction
    trace = replace(trace, counters=memory_counters(prediction, trace))
    count = num_layer_spans(prediction)
    if layers or (layers is None and count <= MOST_LAYER_SPANS):
        return with_layers(trace, prediction, step.loaded.system), ""
    return trace, "" if layers is False else f"; {count:,} passes of layers are left out, --layers writes them"


def answer(arguments: argparse.Namespace) -> str:
    """Write the traces and the picture, and return their names."""
    if arguments.trace is None and arguments.svg is None and arguments.chakra is None:
        raise ConfigError("timeline needs somewhere to write: --trace FILE, --svg FILE, --chakra FOLDER or all")
    from predictor.core.step.spans import step_trace
    from predictor.core.timeline.picture import picture
    from predictor.core.timeline.trace import trace_events

    check_outputs([("--trace", arguments.trace), ("--svg", arguments.svg)], [config_path(arguments)])
    step = predicted(arguments)
    prediction = step.prediction
    trace = step_trace(prediction)
    full, left_out = (trace, "") if arguments.trace is None else _in_full(step, trace, arguments.layers)
    outputs = (
        Output("--trace", arguments.trace, lambda: as_json(trace_events(full), indent=None)),
        Output("--svg", arguments.svg, lambda: picture(trace)),
    )
    said = write_outputs(outputs)
    if left_out:
        said[0] += left_out
    if arguments.chakra is not None:
        from predictor.replay.chakra_export import write_chakra_step

        try:
            files = write_chakra_step(prediction, Path(arguments.chakra))
        except OSError as error:
            raise ConfigError(f"--chakra {arguments.chakra}: {error.strerror or error}") from None
        said.append(f"wrote {arguments.chakra}: Chakra traces of {counted(len(files), 'rank')}")
    return "\n".join(said)
