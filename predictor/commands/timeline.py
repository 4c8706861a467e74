"""``timeline``: the predicted step as a trace file and as a picture."""

from __future__ import annotations

import argparse

from predictor.base.errors import ConfigError
from predictor.commands.parser import Commands, add_command, add_config, as_json, config_path, write_file


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "timeline", "the step as a trace file and a picture", answer)
    add_config(command)
    command.add_argument("--trace", metavar="FILE", help="write a Chrome trace, for ui.perfetto.dev")
    command.add_argument("--svg", metavar="FILE", help="write a picture of the pipeline")


def answer(arguments: argparse.Namespace) -> str:
    """Write the trace and the picture, and return their names."""
    if arguments.trace is None and arguments.svg is None:
        raise ConfigError("timeline needs somewhere to write: --trace FILE, --svg FILE or both")
    from predictor.interface.prediction import predict
    from predictor.step.spans import step_trace
    from predictor.timeline.picture import picture
    from predictor.timeline.trace import trace_events

    path = config_path(arguments)
    trace = step_trace(predict(path).prediction)
    said = []
    if arguments.trace is not None:
        said.append(write_file("--trace", arguments.trace, as_json(trace_events(trace), indent=None), [path]))
    if arguments.svg is not None:
        said.append(write_file("--svg", arguments.svg, picture(trace), [path, arguments.trace]))
    return "\n".join(said)
