"""``report``: one HTML page about a prediction."""

from __future__ import annotations

import argparse

from predictor.commands.config_arguments import add_config, config_path, predicted
from predictor.commands.outputs import Output, check_outputs, write_outputs
from predictor.commands.parser import Commands, add_command

SHOWN = 20


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "report", "one HTML page about a prediction", answer)
    add_config(command)
    command.add_argument("--system", metavar="NAME", help="published system, instead of the configuration's")
    command.add_argument("--out", required=True, metavar="FILE", help="where to write the page")
    command.add_argument(
        "--search",
        action="store_true",
        help="also other layouts on the same GPUs that the framework runs (Megatron-LM where none is named), and which "
        "place this one has among them",
    )


def answer(arguments: argparse.Namespace) -> str:
    """Write the page, and return its name."""
    from predictor.core.report.page.page import page
    from predictor.core.report.page.style import CONTENT_WIDTH
    from predictor.core.step.spans import step_trace
    from predictor.core.timeline.picture import picture

    check_outputs([("--out", arguments.out)], [config_path(arguments)])
    step = predicted(arguments)
    loaded, prediction = step.loaded, step.prediction
    others = ""
    if arguments.search:
        from predictor.core.plan.framework_rules import MEGATRON, rules_behind
        from predictor.core.step.memory import step_memory
        from predictor.layout_search.answer import search
        from predictor.layout_search.own_layout import layout_rank
        from predictor.layout_search.question import problem_around
        from predictor.layout_search.report.layouts import layouts

        rules = rules_behind(loaded.run.framework) or MEGATRON
        problem = problem_around(loaded, rules)
        answered = search(problem, SHOWN, pareto=True)
        fastest_us = (answered.ranking.unsure or answered.ranking.best)[0].step_us
        own = layout_rank(problem, loaded.run, prediction.modelled_us, fastest_us).scaled(prediction.ratio)
        others = layouts(answered, own, max(needed.total for needed in step_memory(prediction.tasks)))
    text = page(prediction, loaded, picture(step_trace(prediction), CONTENT_WIDTH), others)
    return write_outputs([Output("--out", arguments.out, lambda: text)])[0]
