"""Recommend to people who leave when they are disappointed.

The public names are imported when they are first used, so that `import departing` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from departing.evaluate.bracket import Bracket
    from departing.evaluate.evaluation import Distribution, Evaluation, evaluate
    from departing.model.belief import belief, predict
    from departing.model.errors import InputError
    from departing.model.families import random_instance
    from departing.model.histories import Histories
    from departing.model.instance import Instance
    from departing.policy.greedy import Greedy
    from departing.policy.library import load_policy
    from departing.policy.protocol import Policy
    from departing.policy.schedule import Fixed, Threshold, Walk
    from departing.policy.table import Table
    from departing.simulate.comparison import Comparison, compare
    from departing.simulate.run import Run
    from departing.simulate.simulation import simulate

__version__ = "0.1.0"

_HOME = {
    "Bracket": "evaluate.bracket",
    "Comparison": "simulate.comparison",
    "Distribution": "evaluate.evaluation",
    "Evaluation": "evaluate.evaluation",
    "Fixed": "policy.schedule",
    "Greedy": "policy.greedy",
    "Histories": "model.histories",
    "InputError": "model.errors",
    "Instance": "model.instance",
    "Policy": "policy.protocol",
    "Run": "simulate.run",
    "Table": "policy.table",
    "Threshold": "policy.schedule",
    "Walk": "policy.schedule",
    "belief": "model.belief",
    "compare": "simulate.comparison",
    "evaluate": "evaluate.evaluation",
    "load_policy": "policy.library",
    "predict": "model.belief",
    "random_instance": "model.families",
    "simulate": "simulate.simulation",
}

__all__ = [
    "Bracket",
    "Comparison",
    "Distribution",
    "Evaluation",
    "Fixed",
    "Greedy",
    "Histories",
    "InputError",
    "Instance",
    "Policy",
    "Run",
    "Table",
    "Threshold",
    "Walk",
    "belief",
    "compare",
    "evaluate",
    "load_policy",
    "predict",
    "random_instance",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'departing' has no attribute {name!r}")
    return getattr(import_module(f"departing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
