"""``watch``: a live or finished run beside its prediction, with the reason where it is slower."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from predictor.commands.config_arguments import add_config, config_path, predicted
from predictor.commands.outputs import Output, check_outputs, write_outputs
from predictor.commands.parser import BrokenLimit, Commands, Incomplete, Interrupted, add_command, width
from predictor.commands.predict import is_hugectr_file, recommender
from predictor.core.base.command_line import progress
from predictor.core.base.errors import ConfigError, MissingKeyError, PublishedError
from predictor.core.base.json_text import as_json

if TYPE_CHECKING:
    from predictor.core.predict.inputs import Configuration
    from predictor.watch.comparison import Compared
    from predictor.watch.health import Expected, Health
    from predictor.watch.watched_run import WatchedRun

POLL_S = 0.5  # between two looks at the logs
INTERVAL_S = 60.0
SHORTEST_INTERVAL_S = 1.0
EXPERIMENT = "config.yaml"  # in the folder of an experiment of model_training_framework


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "watch", "hold a live or finished run against its prediction", answer)
    add_config(command, is_required=False)
    command.add_argument("--system", metavar="NAME", help="published system, instead of the configuration's")
    logs = command.add_argument_group("the run")
    logs.add_argument(
        "--log", action="extend", nargs="+", default=[], metavar="FILE", help="logs, or folders of them; repeatable"
    )
    logs.add_argument(
        "--events", action="append", default=[], metavar="FOLDER", help="TensorBoard events, or W&B's offline folder"
    )
    logs.add_argument("--pattern", metavar="REGEX", help="of a step's line, with groups step and seconds or time")
    logs.add_argument("--against", metavar="RUN", help="compare step by step with another run: its log or folder")
    command.add_argument("--once", action="store_true", help="read what there is, answer and end")
    command.add_argument(
        "--interval", type=float, default=INTERVAL_S, metavar="SECONDS", help="between two lines while following (60)"
    )
    command.add_argument(
        "--allow", type=float, metavar="PERCENT", help="exit with 3 where the step is slower than expected by more"
    )
    command.add_argument("--json", action="store_true", help="print JSON, a line each interval while following")
    command.add_argument("--html", metavar="FILE", help="also one HTML page, written again each interval")
    command.add_argument("--prometheus", type=int, metavar="PORT", help="serve metrics to this machine; 0: a free port")
    command.add_argument("--record", metavar="FILE", help="add the run to a CSV that calibrate and verify read")


def _check(arguments: argparse.Namespace) -> None:
    """Check the options before anything is read."""
    if not SHORTEST_INTERVAL_S <= arguments.interval < float("inf"):
        raise ConfigError(f"--interval is {arguments.interval:g}; it must be at least {SHORTEST_INTERVAL_S:g} second")
    if arguments.allow is not None and not 0.0 <= arguments.allow < float("inf"):
        raise ConfigError(f"--allow is {arguments.allow:g}; expected percent, 0 or more")
    if arguments.prometheus is not None and not 0 <= arguments.prometheus <= 65535:
        raise ConfigError(f"--prometheus is {arguments.prometheus}; expected a port, 0 to 65535")
    if arguments.prometheus is not None and arguments.once:
        raise ConfigError("--prometheus serves while a run is followed; leave out --once")
    named = [("--html", arguments.html), ("--record", arguments.record)]
    check_outputs(named, [*arguments.paths, *arguments.log, arguments.config])


def _is_folder_alone(arguments: argparse.Namespace) -> bool:
    """Return whether the folder of a run is all that was named."""
    return (
        not arguments.log and not arguments.events and len(arguments.paths) == 1 and Path(arguments.paths[0]).is_dir()
    )


def _logs(arguments: argparse.Namespace) -> list[str]:
    """Return the files and folders to read.

    Raises:
        ConfigError: none is named.
    """
    if _is_folder_alone(arguments):
        return list(arguments.paths)
    logs = [*arguments.log, *arguments.events]
    if not logs:
        named = arguments.paths[0] if len(arguments.paths) == 1 else "FILE"
        raise ConfigError(f"no log is named; add --log FILE or --events FOLDER, name a run's folder, or --log {named}")
    return logs


def _is_configured(arguments: argparse.Namespace) -> bool:
    return bool(arguments.paths or arguments.config or arguments.example or arguments.model)


def _of_folder(arguments: argparse.Namespace) -> tuple[Configuration | None, Expected | None]:
    """Return what predicts the run of a folder; nothing where the folder says too little, which is said."""
    from predictor.core.base.read_yaml import read_mapping
    from predictor.core.schema.input_kind import is_of_trainer

    own = Path(arguments.paths[0]) / EXPERIMENT
    try:
        paths = [str(own)] if own.is_file() and is_of_trainer(read_mapping(own)) else arguments.paths
        return _prediction(argparse.Namespace(**{**vars(arguments), "paths": paths}))
    except (ConfigError, MissingKeyError, PublishedError, yaml.YAMLError) as error:
        if arguments.system is not None or arguments.changes:
            raise
        progress(f"no prediction, so the run is judged by itself alone: {error}")
        return None, None


def _prediction(arguments: argparse.Namespace) -> tuple[Configuration | None, Expected | None]:
    """Return the configuration and the step that it predicts; nothing where none is named."""
    if not _is_configured(arguments):
        if arguments.system is not None or arguments.changes:
            raise ConfigError("--system and --set are of a prediction; name a configuration, or --model")
        return None, None
    path = config_path(arguments)
    if is_hugectr_file(path):
        return None, _expected_recommender(path, arguments)
    from predictor.watch.expectation import expected

    step = predicted(arguments)
    return step.configuration, expected(step)


def _expected_recommender(path: Path, arguments: argparse.Namespace) -> Expected:
    """Return the step that a HugeCTR configuration predicts."""
    from dataclasses import asdict, replace

    from predictor.core.step.memory import GIB
    from predictor.watch.expectation import timed

    step = recommender(path, arguments)
    parts = {name.removesuffix("_us").replace("_", " "): us for name, us in asdict(step.parts).items()}
    return replace(
        timed(step.step, {name: us for name, us in parts.items() if not name.startswith("hidden")}, step.name),
        samples=step.run.batch_size,
        memory_bytes=step.memory_gib * GIB,
        num_gpus=step.run.num_gpus,
    )


def _check_logs(logs: list[str], is_once: bool) -> None:
    """Check that every log is there, or say that it is waited for: a job that still queues has none.

    Raises:
        ConfigError: one is not there, and nobody waits for it; or it is a pipe.
    """
    pipe = next((log for log in logs if Path(log).exists() and not (Path(log).is_file() or Path(log).is_dir())), None)
    if pipe is not None:
        raise ConfigError(f"{pipe} is neither a file nor a folder; a log is read as it grows, so write it to a file")
    missing = [log for log in logs if not Path(log).exists()]
    if missing and is_once:
        raise ConfigError(f"{missing[0]}: there is no such log; without --once it is waited for")
    if missing:
        progress(f"waiting for {', '.join(missing)}")


def _check_record(arguments: argparse.Namespace, configuration: Configuration | None) -> None:
    """Check that a row of a table can hold what the run is.

    Raises:
        ConfigError: it has no configuration, or changes of the hardware, which are no key of one.
    """
    from predictor.core.costs.hardware_change import is_of_hardware

    if configuration is None:
        raise ConfigError("--record needs the run's configuration, which its row holds; name it, or --model")
    changed = next((text for text in arguments.changes if is_of_hardware(text)), None)
    if changed is not None:
        raise ConfigError(f"--record: a row does not hold {changed}; put it into a system of your own, with like:")


def _print_line(text: str) -> None:
    """Print a line of the result at once."""
    if sys.stdout is not None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _other(arguments: argparse.Namespace) -> WatchedRun | None:
    """Return the run to compare with, read; None where none is named."""
    if arguments.against is None:
        return None
    from predictor.watch.watched_run import WatchedRun

    _check_logs([arguments.against], is_once=True)
    other = WatchedRun([arguments.against], arguments.pattern)
    other.poll()
    return other


class Watch:
    """A run that is watched, and everything that is said of it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Predict the run and open its logs, unread.

        Raises:
            ConfigError: no log is named or one cannot be read, or the configuration cannot be predicted.
        """
        from predictor.watch.watched_run import WatchedRun

        self._arguments = arguments
        logs = _logs(arguments)
        is_folder = _is_folder_alone(arguments)
        self._configuration, expected = _of_folder(arguments) if is_folder else _prediction(arguments)
        if arguments.record is not None:
            _check_record(arguments, self._configuration)
        _check_logs(logs, arguments.once)
        self._name = Path(logs[0]).resolve().name
        self._run = WatchedRun(logs, arguments.pattern, expected, is_live=not arguments.once)
        self._other = _other(arguments)
        if self._other is not None:
            self._run.compare_with(self._other.health())
        self._is_page_failing = False

    def answer(self) -> str:
        """Return how the run stands: by what there is, or once it has ended or Ctrl-C has ended the watching."""
        from predictor.watch.prometheus import exposition, served

        port = self._arguments.prometheus
        with ExitStack() as stack:
            if port is not None:
                try:
                    taken = stack.enter_context(served(port, lambda: exposition(self._run.health())))
                except OSError as error:
                    raise ConfigError(f"--prometheus {port}: {error.strerror or error}; name another port") from None
                progress(f"metrics at http://127.0.0.1:{taken}/metrics")
            try:
                self._run.poll()
                if not self._arguments.once:
                    self._follow()
            except KeyboardInterrupt:
                return Interrupted(self._told(self._end()))
            except BrokenPipeError:  # nobody reads the lines any more; the last one says so by its exit code
                return self._told(self._end())
        health = self._end()
        return self._judged(health, self._told(health))

    def _follow(self) -> None:
        """Read what is written until the run ends, and say how it stands each interval."""
        self._write_page(self._run.health())
        self._say()
        due = time.monotonic() + self._arguments.interval
        while not self._run.is_ended:
            time.sleep(POLL_S)
            self._run.poll()
            if time.monotonic() >= due:
                self._say()
                due = time.monotonic() + self._arguments.interval

    def _say(self) -> None:
        """Say how the run stands: a line for people, or a document a line; and write its page again."""
        from predictor.watch.words import line

        health = self._run.health()
        if self._arguments.json:
            _print_line(self._document(health, indent=None))
        else:
            progress(line(health, time.time()))
        try:
            self._write_page(health)
            self._is_page_failing = False
        except ConfigError as error:  # a disk that is full for a while does not end the watching
            if not self._is_page_failing:
                progress(str(error))
            self._is_page_failing = True

    def _end(self) -> Health:
        """Write the page and the record for the last time, and return the health that they show."""
        health = self._run.health()
        self._write_page(health, is_last=True)
        record = self._arguments.record
        if record is not None and self._configuration is not None:
            from predictor.watch.record import record_run

            log = self._run.descriptions[0]
            record_run(Path(record), self._configuration, self._name, log, health, self._run.contradictions)
            progress(f"recorded in {record}")
        return health

    def _write_page(self, health: Health, is_last: bool = False) -> None:
        """Write the page; a browser reads it again until the last one.

        Raises:
            ConfigError: it cannot be written.
        """
        name = self._arguments.html
        if name is None:
            return
        from predictor.watch.chart import MOST_POINTS
        from predictor.watch.page import page

        buckets = self._run.series.at_most(MOST_POINTS)
        reload_s = None if is_last else self._arguments.interval
        text = page(health, buckets, self._run.descriptions, time.time(), reload_s)
        write_outputs([Output("--html", name, lambda: text)])

    def _compared(self, health: Health) -> Compared | None:
        """Return the run beside the other; None where none is named."""
        if self._other is None:
            return None
        from predictor.watch.comparison import Compared, stretches

        self._other.compare_with(health)
        names = (self._name, Path(self._arguments.against).resolve().name)
        names = names if names[0] != names[1] else ("this run", self._arguments.against)
        return Compared(health, self._other.health(), names, stretches(self._run.series, self._other.series))

    def _document(self, health: Health, indent: int | None) -> str:
        """Return the JSON of the run, or of its comparison."""
        from predictor.watch.comparison_report import comparison_json
        from predictor.watch.json_document import to_json

        compared, sources = self._compared(health), self._run.descriptions
        if compared is None or self._other is None:
            return as_json(to_json(health, sources, time.time()), indent)
        return as_json(comparison_json(compared, (sources, self._other.descriptions), time.time()), indent)

    def _told(self, health: Health) -> str:
        """Return the answer as text or JSON."""
        if self._arguments.json:
            return self._document(health, indent=2 if self._arguments.once else None)
        from predictor.watch import comparison_report, text

        compared = self._compared(health)
        if compared is not None:
            return comparison_report.render(compared, width())
        return text.render(health, self._run.descriptions, width())

    def _judged(self, health: Health, told: str) -> str:
        """Return the answer, marked where the run has no step, or is slower than ``--allow``."""
        allowed, compared = self._arguments.allow, self._compared(health)
        if health.last_step is None or (compared is not None and compared.ratio is None):
            return Incomplete(told)
        from predictor.watch.words import slowdown

        slower = slowdown(health) if compared is None else compared.ratio
        if allowed is not None and slower is None:
            return Incomplete(told)
        return BrokenLimit(told) if allowed is not None and slower is not None and slower * 100.0 > allowed else told


def answer(arguments: argparse.Namespace) -> str:
    """Return the health of the run."""
    _check(arguments)
    return Watch(arguments).answer()
