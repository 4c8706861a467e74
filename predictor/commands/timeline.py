"""``timeline``: the predicted step as a trace file, as a picture, and as traces for network simulators."""

from __future__ import annotations

import argparse
from pathlib import Path

from predictor.base.errors import ConfigError
from predictor.commands.asked import add_config, config_path, predicted
from predictor.commands.parser import Commands, add_command, as_json, write_file


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "timeline", "the step as a trace file and a picture", answer)
    add_config(command)
    command.add_argument("--system", metavar="NAME", help="published system, instead of the configuration's")
    command.add_argument("--trace", metavar="FILE", help="write a Chrome trace, for ui.perfetto.dev")
    command.add_argument("--svg", metavar="FILE", help="write a picture of the pipeline")
    command.add_argument("--chakra", metavar="FOLDER", help="write Chakra execution traces, for network simulators")


def answer(arguments: argparse.Namespace) -> str:
    """Write the traces and the picture, and return their names."""
    if arguments.trace is None and arguments.svg is None and arguments.chakra is None:
        raise ConfigError("timeline needs somewhere to write: --trace FILE, --svg FILE, --chakra FOLDER or all")
    from predictor.step.spans import step_trace
    from predictor.timeline.picture import picture
    from predictor.timeline.trace import trace_events

    path = config_path(arguments)
    prediction = predicted(arguments).prediction
    trace = step_trace(prediction)
    said = []
    if arguments.trace is not None:
        said.append(write_file("--trace", arguments.trace, as_json(trace_events(trace), indent=None), [path]))
    if arguments.svg is not None:
        said.append(write_file("--svg", arguments.svg, picture(trace), [path, arguments.trace]))
    if arguments.chakra is not None:
        from predictor.replay.chakra_export import write_chakra_step

        try:
            files = write_chakra_step(prediction, Path(arguments.chakra))
        except OSError as error:
            raise ConfigError(f"--chakra {arguments.chakra}: {error.strerror}") from None
        said.append(f"wrote {arguments.chakra}: Chakra traces of {len(files)} ranks")
    return "\n".join(said)
