"""The dependency graph of a step ends when the prediction says, for every golden configuration of one step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from predictor.core.base.bundled import EXAMPLES_FOLDER
from predictor.core.predict.prediction import predict
from predictor.core.step.composition import StepTime
from predictor.core.step.spans import step_graph
from predictor.core.timeline.graph import replay_graph
from predictor.core.timeline.pipeline import Stream
from predictor.recommender.prediction import predict_recommender
from tests.golden.configurations import READERS, configurations, publish_fp32


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepTime]:
    """Return the predictions of all configurations but searches, which predict many steps."""
    folder = tmp_path_factory.mktemp("golden")
    places = {"READERS": READERS, "FP32": publish_fp32(folder)}

    def predicted() -> Iterator[tuple[str, StepTime]]:
        for configuration in configurations():
            _, what, *rest = configuration.command.split()
            if what == "--example":
                yield configuration.name, predict(EXAMPLES_FOLDER / f"{rest[0]}.yml").prediction
            elif what == "CONFIG":
                text = yaml.safe_dump(configuration.content, allow_unicode=True)
                for placeholder, path in places.items():
                    text = text.replace(placeholder, str(path))
                config = folder / "config.yml"
                config.write_text(text, encoding="utf-8")
                yield configuration.name, predict(config).prediction
            elif what.startswith("READERS/hugectr/"):
                path = READERS / what.removeprefix("READERS/")
                yield configuration.name, predict_recommender(path, system="Selene", gpus=8).prediction

    return dict(predicted())


def test_the_makespan_of_the_graph_is_the_step(predictions: dict[str, StepTime]) -> None:
    assert len(predictions) == sum(not row.command.startswith("search") for row in configurations())
    for name, prediction in predictions.items():
        graph = replay_graph(step_graph(prediction))
        assert graph.makespan_us == pytest.approx(prediction.modelled_us, rel=1e-9), name
        last = graph.spans[graph.critical_path[-1]]
        assert last.stream in (Stream.OPTIMIZER, Stream.REDUCTION), name


def test_hidden_traffic_runs_beside_its_passes(predictions: dict[str, StepTime]) -> None:
    hiding = 0
    for name, prediction in predictions.items():
        spans = replay_graph(step_graph(prediction)).spans
        hidden = [span for span in spans if span.stream == Stream.COMMUNICATION]
        passes = [one for stage in prediction.stages for one in stage.whole.passes]
        expected = sum(cost.us for one in passes for cost in one.hidden.values())
        shown = sum(span.duration_us for span in hidden)
        assert shown == pytest.approx(expected * prediction.tasks.num_micro_batches), name
        hiding += bool(hidden)
        slots = {(span.rank, *span.details.values()): span for span in spans if span.stream == Stream.COMPUTE}
        for span in hidden:
            slot = slots[span.rank, *span.details.values()]
            assert slot.start_us <= span.start_us * (1 + 1e-12), name
            if not prediction.stages[span.rank].whole.weight.cost.us:
                assert span.end_us <= slot.end_us * (1 + 1e-12), name
    assert hiding > 20
