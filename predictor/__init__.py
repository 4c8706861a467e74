"""Predict the time of one distributed training step from published operator times, without a GPU.

``predict``, ``search``, ``plan``, ``compare`` and ``load_system`` are all that a question needs,
``predict_recommender`` and ``search_plans`` where it is about a recommender; docs/python-api.md shows them.
"""

from predictor.core.base.wings import provide

TYPE_CHECKING = False  # for type checkers; importing typing for it would cost more than all the rest
if TYPE_CHECKING:
    from predictor.core.predict.comparison import compare
    from predictor.core.predict.prediction import predict
    from predictor.core.predict.system import load_system
    from predictor.layout_search.interface import search
    from predictor.recommender.plans import search_plans
    from predictor.recommender.prediction import predict_recommender
    from predictor.training_plan.interface import plan

__all__ = ["__version__", "compare", "load_system", "plan", "predict", "predict_recommender", "search", "search_plans"]
__version__ = "0.1.0"  # the same as in pyproject.toml; a test compares them

_MODULES = {
    "compare": "predictor.core.predict.comparison",
    "load_system": "predictor.core.predict.system",
    "plan": "predictor.training_plan.interface",
    "predict": "predictor.core.predict.prediction",
    "predict_recommender": "predictor.recommender.prediction",
    "search": "predictor.layout_search.interface",
    "search_plans": "predictor.recommender.plans",
}

# The core, and wings of each other, ask for these by name, since they import none.
provide(
    readers="predictor.formats",
    writers="predictor.formats.writers",
    recommenders="predictor.recommender.verified",
)


if not TYPE_CHECKING:  # to type checkers other names are errors

    def __getattr__(name: str) -> object:
        """Return a function of the interface, imported when it is first asked for."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return what there is, functions that are not imported yet included."""
    return sorted({*globals(), *_MODULES})
