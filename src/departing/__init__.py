"""Recommend to people who leave when they are disappointed.

The public names are imported when they are first used, so that `import departing` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from departing.data.log import Log, read_log
    from departing.data.movielens import movielens
    from departing.data.oulad import oulad
    from departing.evaluation.bracket import Bracket
    from departing.evaluation.evaluate import Distribution, Evaluation, evaluate
    from departing.fitting.fit import Fit, fit
    from departing.learning.bayes import Bayes
    from departing.learning.blocks import Frozen
    from departing.learning.lattice import LatticeUCB
    from departing.learning.library import load_learner
    from departing.learning.protocol import Learner
    from departing.learning.ucb import UCBHybrid
    from departing.model.belief import belief, predict
    from departing.model.errors import InputError
    from departing.model.families import random_instance
    from departing.model.histories import Histories
    from departing.model.instance import Instance
    from departing.offpolicy.value import ValueOnLog, value_on_log
    from departing.planning.plan import Plan, plan
    from departing.policy.alpha import Alpha
    from departing.policy.greedy import Greedy
    from departing.policy.library import load_policy
    from departing.policy.protocol import Policy
    from departing.policy.schedule import Fixed, Threshold, Walk
    from departing.policy.table import Table
    from departing.simulation.compare import Comparison, compare
    from departing.simulation.run import Run
    from departing.simulation.simulate import simulate
    from departing.simulation.visits import Visits, visits

__version__ = "0.1.0"

_HOME = {
    "Alpha": "policy.alpha",
    "Bayes": "learning.bayes",
    "Bracket": "evaluation.bracket",
    "Comparison": "simulation.compare",
    "Distribution": "evaluation.evaluate",
    "Evaluation": "evaluation.evaluate",
    "Fit": "fitting.fit",
    "Fixed": "policy.schedule",
    "Frozen": "learning.blocks",
    "Greedy": "policy.greedy",
    "Histories": "model.histories",
    "InputError": "model.errors",
    "Instance": "model.instance",
    "LatticeUCB": "learning.lattice",
    "Learner": "learning.protocol",
    "Log": "data.log",
    "Plan": "planning.plan",
    "Policy": "policy.protocol",
    "Run": "simulation.run",
    "Table": "policy.table",
    "Threshold": "policy.schedule",
    "UCBHybrid": "learning.ucb",
    "ValueOnLog": "offpolicy.value",
    "Visits": "simulation.visits",
    "Walk": "policy.schedule",
    "belief": "model.belief",
    "compare": "simulation.compare",
    "evaluate": "evaluation.evaluate",
    "fit": "fitting.fit",
    "load_learner": "learning.library",
    "load_policy": "policy.library",
    "movielens": "data.movielens",
    "oulad": "data.oulad",
    "plan": "planning.plan",
    "predict": "model.belief",
    "random_instance": "model.families",
    "read_log": "data.log",
    "simulate": "simulation.simulate",
    "value_on_log": "offpolicy.value",
    "visits": "simulation.visits",
}

__all__ = [
    "Alpha",
    "Bayes",
    "Bracket",
    "Comparison",
    "Distribution",
    "Evaluation",
    "Fit",
    "Fixed",
    "Frozen",
    "Greedy",
    "Histories",
    "InputError",
    "Instance",
    "LatticeUCB",
    "Learner",
    "Log",
    "Plan",
    "Policy",
    "Run",
    "Table",
    "Threshold",
    "UCBHybrid",
    "ValueOnLog",
    "Visits",
    "Walk",
    "belief",
    "compare",
    "evaluate",
    "fit",
    "load_learner",
    "load_policy",
    "movielens",
    "oulad",
    "plan",
    "predict",
    "random_instance",
    "read_log",
    "simulate",
    "value_on_log",
    "visits",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'departing' has no attribute {name!r}")
    return getattr(import_module(f"departing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
